"""Verdicts of two trials of the same variants, put together in one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import ONE, TWO, FakeRun
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from prepare.errors import EvidenceError


def is_good(variant: str, suite: str, number: int) -> float:
    return float(variant != TWO)


@pytest.mark.parametrize("descends", [True, False])
def test_each_of_them_is_told(tmp_path: Path, *, descends: bool) -> None:
    def judged(*recipes: str, until_pass: bool) -> FakeRun:
        sizes = {name: 9 - place for place, name in enumerate(recipes)}
        made = FakeRun(
            tmp_path / "store",
            PretendModels(is_good),
            recipes=recipes,
            until_pass=until_pass,
            sizes=sizes,
        )
        made.run()
        return made

    other = judged(TWO, ONE, until_pass=descends).report
    made = judged(ONE, TWO, until_pass=True)
    assert not any(check.differences for check in check_run(made.report, made.store))
    (place,) = [
        place
        for place, stage in enumerate(made.report.stages)
        if (stage.stage, stage.variant) == ("judge", TWO)
    ]
    stages = [*made.report.stages]
    (stages[place],) = [s for s in other.stages if (s.stage, s.variant) == ("judge", TWO)]
    (theirs,) = [variant for variant in other.variants if variant.recipe == TWO]
    made.save(stages=stages, variants=[made.report.variants[0], theirs])
    assert all(check.differences for check in check_run(made.report, made.store))
    with pytest.raises(EvidenceError, match="different trials"):
        made.bundle(ONE)

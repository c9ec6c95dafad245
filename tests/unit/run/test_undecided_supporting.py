"""A supporting gate that cannot be decided: a pass names it, or it holds the promotion."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import FakeRun, equal, flipping
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from artifacts.registry import Registry
from pipeline.stages.verdict import exit_code_of
from prepare.errors import ExitCode
from recipes.policy import Policy


def answered(variant: str, suite: str, number: int) -> float:
    score = equal if suite == "code" else flipping(2)
    return score(variant, suite, number)


def run(folder: Path, undecided_supporting: str) -> FakeRun:
    suite = {"kind": "humaneval", "margins": {"fp8": 0.1}}
    tight = {**suite, "margins": {"fp8": 0.02}, "tier": "supporting"}
    suites = {"code": suite, "more": tight}
    made = {"name": "p", "summary": "s", "undecided_supporting": undecided_supporting}
    policy = Policy.model_validate({**made, "suites": suites})
    fake = FakeRun(folder / "store", PretendModels(answered, questions=120), policy)
    fake.run()
    return fake


@pytest.mark.parametrize(
    ("asked", "verdict", "code"),
    [("pass", "pass", ExitCode.SUCCESS), ("hold", "undecided", ExitCode.UNDECIDED)],
)
def test_the_policy_chooses_what_it_does(
    tmp_path: Path, asked: str, verdict: str, code: ExitCode
) -> None:
    made = run(tmp_path, asked)
    (variant,) = made.report.variants
    assert [gate.verdict for gate in variant.gates] == ["pass", "undecided"]
    assert variant.verdict == verdict
    assert exit_code_of([variant.verdict]) == code
    (check,) = check_run(made.report, made.store)
    assert (check.computed, check.differences) == (verdict, ())


def test_registry_names_what_was_not_shown(tmp_path: Path) -> None:
    made = run(tmp_path, "pass")
    promoted = made.promote()
    model = Registry(promoted["registry"]).existing(promoted["name"])
    assert "not shown on more (" in model.history[-1].reason
    assert "more (" in model.versions[0].tags["prepare.not_shown"]
    card = (Path(model.versions[0].source) / "README.md").read_text()
    (row,) = [line for line in card.splitlines() if line.startswith("| Verdict |")]
    assert "not shown on more" in row

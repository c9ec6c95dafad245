"""A verdict of a run whose stages are gone from the store is not vouched for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_run import FakeRun, equal
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from recipes.policy import Policy

POLICY = Policy.model_validate(
    {
        "name": "p",
        "summary": "s",
        "suites": {"code": {"kind": "humaneval", "margins": {"fp8": 0.1}}},
    }
)


@pytest.mark.parametrize("stage", ["judge", "evaluate"])
def test_a_stage_that_is_gone_is_named(tmp_path: Path, stage: str) -> None:
    made = FakeRun(tmp_path / "store", PretendModels(equal, questions=120), POLICY)
    made.run()
    (check,) = check_run(made.report, made.store)
    assert check.differences == ()
    shutil.rmtree(made.store.root / "stages" / stage)
    (check,) = check_run(made.report, made.store)
    assert any(stage in difference for difference in check.differences)

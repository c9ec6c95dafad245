"""Where the questions of answers on record are taken from: never from other ones of that name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import FakeRun, judged_run

from eval_gates.suites.sources import QuestionSource, SuiteSource
from pipeline.environments.settings import Settings
from pipeline.plan.recorded_arm import RecordedArm, open_record
from pipeline.stages.questions import QUESTIONS
from prepare.errors import EvaluationDataError

RECORDED = QuestionSource(kind="builtin")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("judged") / "store")


@pytest.fixture
def arm(judged: FakeRun, tmp_path: Path) -> RecordedArm:
    settings = Settings(home=tmp_path / "home", store=judged.root)
    reference = f"{judged.report.run}:fp8-dynamic"
    registry: Any = SimpleNamespace()
    return open_record(reference, registry, None, settings, tmp_path)


def questions_from(arm: RecordedArm, store: Path, found: SuiteSource | None) -> Any:
    def suite(name: str, task: Any) -> SuiteSource:
        if found is None:
            raise EvaluationDataError("there is none", where="here", hint="none")
        return found

    sources: Any = SimpleNamespace(suite=suite)
    return QUESTIONS.runtime_of(arm.questions_stage("code", store, sources))


def test_the_same_source_is_laid_out_again(arm: RecordedArm, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    runtime = questions_from(arm, tmp_path / "empty", SuiteSource(RECORDED, folder))
    assert (runtime.folder, runtime.archive) == (str(folder), "")


@pytest.mark.parametrize("found", [SuiteSource(QuestionSource(kind="packages")), None])
def test_other_questions_are_not_those_on_record(
    arm: RecordedArm, tmp_path: Path, found: SuiteSource | None
) -> None:
    runtime = questions_from(arm, tmp_path / "empty", found)
    assert runtime.folder is None
    assert Path(runtime.archive).is_file()


def test_the_store_that_made_the_record_has_them(
    arm: RecordedArm, judged: FakeRun, tmp_path: Path
) -> None:
    runtime = questions_from(arm, judged.root, SuiteSource(RECORDED, tmp_path))
    assert (runtime.folder, runtime.archive) == (None, "")

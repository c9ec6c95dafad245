"""A run has the same result with any resources: one work item at a time, or six, in any order."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, equal, flipping, lost, policy
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pretend_stages import PretendExecutor, PretendJob, PretendModels, Score

from artifacts.evidence.verify import check_run

QUESTIONS = 96
MODELS: dict[str, Score] = {
    "as good": equal,
    "worse": lost(2),
    "hardly worse": lost(8),
    "different": flipping(4),
    "broken": equal,
    "babbling": equal,
}


@dataclass(frozen=True)
class Asked:
    """A run: what each of its variants is, how it is judged."""

    models: tuple[str, ...]
    has_two_suites: bool
    repeat: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"variant-{number}" for number in range(len(self.models)))

    def of_kind(self, kind: str) -> set[str]:
        return {name for name, each in zip(self.names, self.models, strict=True) if each == kind}

    def run(self, store: Path, rooms: int) -> FakeRun:
        """In so many rooms."""
        scores = dict(zip(self.names, self.models, strict=True))

        def score(variant: str, suite: str, number: int) -> float:
            return MODELS[scores.get(variant, "as good")](variant, suite, number)

        models = PretendModels(
            score,
            QUESTIONS,
            broken=self.of_kind("broken"),
            babbling=self.of_kind("babbling"),
        )
        judged = policy(noise_floor_questions=self.repeat)
        if self.has_two_suites:
            other = policy(kind="mmlu")
            judged = judged.model_copy(
                update={"suites": {**judged.suites, "mmlu": other.suites["code"]}}
            )
        made = FakeRun(
            store,
            models,
            judged,
            self.names,
            rooms=rooms,
        )
        made.run()
        return made


RUNS = st.builds(
    Asked,
    models=st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=3).map(tuple),
    has_two_suites=st.booleans(),
    repeat=st.sampled_from([0, 16]),
)


def told(made: FakeRun) -> dict[str, Any]:
    """What came out: verdicts, numbers of answers, and what was asked for them."""
    questions: dict[tuple[str, str], int] = {}
    for variant, suite, number in made.models.asked:
        questions[variant, suite] = questions.get((variant, suite), 0) + number
    variants = {
        each.recipe: (each.verdict, [(gate.suite, gate.verdict, gate.n) for gate in each.gates])
        for each in made.report.variants
    }
    stages = sorted((each.variant, each.name, each.status) for each in made.report.stages)
    return {"variants": variants, "asked": questions, "stages": set(stages)}


@pytest.fixture
def slow_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of work that are done are told so in any order."""
    drawn = random.Random(6)

    class Late(PretendJob):
        def wait(self, listener: Any) -> None:
            time.sleep(drawn.random() * 0.01)
            super().wait(listener)

    submit = PretendExecutor.submit

    def submit_late(executor: PretendExecutor, task: Path, log: Path) -> PretendJob:
        job = submit(executor, task, log)
        return Late(job.folder, job.failure, job.ended)

    monkeypatch.setattr(PretendExecutor, "submit", submit_late)


@pytest.mark.usefixtures("slow_to_tell")
@settings(max_examples=6, phases=[Phase.generate])  # a run takes a second: not for shrinking
@given(asked=RUNS, rooms=st.integers(2, 6))
def test_verdicts_and_counts_are_the_same_in_whatever_room(
    asked: Asked, rooms: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rooms")
    alone, made = asked.run(folder / "one", 1), asked.run(folder / "more", rooms)
    assert told(made) == told(alone)
    if any(each.gates for each in made.report.variants):
        assert all(not check.differences for check in check_run(made.report, made.store))

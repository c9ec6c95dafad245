from __future__ import annotations

from pathlib import Path

import pytest

from eval_gates.answer_log import AnswerLog
from eval_gates.evaluate_worker import ask_until_over
from eval_gates.rows import Answer
from eval_gates.stopping import StoppingPlan
from prepare.errors import StageError

IDS = [f"q/{number}" for number in range(200)]


class Model:
    def __init__(self, wrong: frozenset[int] = frozenset(), breaks_at: int = 1000) -> None:
        self.wrong = wrong
        self.breaks_at = breaks_at
        self.batches: list[range] = []

    def ask(self, batch: range) -> list[Answer]:
        self.batches.append(batch)
        if self.breaks_at in batch:
            raise StageError("the server gave no answer")
        return [Answer(IDS[n], "p", float(n not in self.wrong)) for n in batch]


@pytest.fixture
def answer_log(tmp_path: Path) -> AnswerLog:
    return AnswerLog(tmp_path / "answers" / "log.jsonl", IDS, writer=1)


def ask(answer_log: AnswerLog, stopping: StoppingPlan, model: Model) -> None:
    ask_until_over(answer_log, stopping, model.ask)


def test_it_goes_on_from_the_log(answer_log: AnswerLog) -> None:
    ask(answer_log, StoppingPlan(20, 8), Model())
    model = Model()
    ask(answer_log, StoppingPlan(40, 8), model)
    assert model.batches == [range(20, 28), range(28, 36), range(36, 40)]


def test_a_batch_that_fails_loses_no_other(answer_log: AnswerLog) -> None:
    with pytest.raises(StageError):
        ask(answer_log, StoppingPlan(40, 8), Model(breaks_at=17))
    assert len(answer_log.rows()) == 16

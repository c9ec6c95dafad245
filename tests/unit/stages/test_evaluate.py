"""What a suite's score is called in verdicts and reports, and which answers are one model's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eval_gates.suites.humaneval import HumanEvalSuite
from eval_gates.suites.mbpp import MbppSuite
from eval_gates.suites.mmlu import MmluSuite
from eval_gates.suites.rouge import RougeSuite
from pipeline.core.stage_record import StageReference
from pipeline.stages.evaluate import EvaluateParameters
from pipeline.stages.evaluate.run import book_key, metric_of
from recipes.policy import AnySuite, Margin

MARGINS: Any = {"fp8": Margin(points=0.1)}


@pytest.mark.parametrize(
    ("suite", "metric"),
    [
        (MmluSuite(margins=MARGINS), "acc"),
        (MmluSuite(margins=MARGINS, prompt_format="cloze"), "acc_norm"),
        (HumanEvalSuite(margins=MARGINS), "pass@1"),
        (MbppSuite(margins=MARGINS, samples=10, sampling="model", k=5), "pass@5"),
        (RougeSuite(margins=MARGINS, metric="bleu"), "bleu"),
    ],
)
def test_the_metric_of_each_kind(suite: AnySuite, metric: str) -> None:
    questions = SimpleNamespace(
        stage="questions",
        key="0c",
        result={"questions": 1, "questions_digest": "d", "guessing": 0},
    )
    context: Any = SimpleNamespace(
        parameters=SimpleNamespace(suite=suite), input_record=lambda role: questions
    )
    assert metric_of(context) == metric


def test_weights_that_are_taken_in_again_keep_their_answers() -> None:
    asked = EvaluateParameters(
        suite=MmluSuite(margins=MARGINS), environment="e", max_length=8, max_questions=8
    )
    parameters = asked.model_dump(mode="json")

    def key_with(**check: str | None) -> str:
        """The result of a round on weights that were checked so."""
        spec: Any = SimpleNamespace(
            stage="evaluate",
            parameters=parameters,
            inputs={"weights": StageReference(stage="check_weights", key="0c")},
        )
        store: Any = SimpleNamespace(find=lambda stage, key: SimpleNamespace(result=check))
        return book_key(spec, store)

    made_here = key_with(weights_digest="aa", auxiliary_files_digest="bb")
    assert made_here == key_with(weights_digest="aa", auxiliary_files_digest=None)
    assert made_here != key_with(weights_digest="cc", auxiliary_files_digest="bb")

"""Which of a task's metrics a gate can use, and scores by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.lm_eval_task import Metric, choose_metric
from prepare.errors import EvaluationDataError

PERPLEXITY = Metric("perplexity", "perplexity", False)
ACC = Metric("acc", "mean", True)
ERROR = Metric("wer", "mean", False)
METRICS = [ACC, PERPLEXITY, ERROR, Metric("bleu", "bleu", True)]


@pytest.mark.parametrize(("wanted", "filter_name"), [("wer", "strict"), ("wer, loose", "loose")])
def test_the_one_that_is_named_and_its_filter(wanted: str, filter_name: str) -> None:
    chosen = choose_metric("t", METRICS, ["strict", "loose"], wanted)
    assert (chosen.name, chosen.label) == ("wer", f"1 - wer,{filter_name}")


@pytest.mark.parametrize(
    ("metrics", "wanted", "what", "hint"),
    [
        (METRICS, "f1", "no metric 'f1'", "acc, wer"),
        (METRICS, "bleu", "no metric 'bleu'", "acc, wer"),
        ([PERPLEXITY, ACC], None, "no metric 'perplexity'", "documents: acc"),
        ([Metric("likelihood", "mean", True)], None, "'likelihood'", "none"),
        ([Metric("rouge", "mean", True, needs_hub=True)], None, "'rouge'", "none"),
        (METRICS, "acc,loose", "'acc,loose'", "filters: strict"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(
    metrics: list[Metric], wanted: str | None, what: str, hint: str
) -> None:
    with pytest.raises(EvaluationDataError, match=what) as caught:
        choose_metric("my_task", metrics, ["strict"], wanted)
    assert hint in caught.value.hint
    assert "my_task" in caught.value.where


@given(st.floats(0, 1))
def test_bounded_values(value: float) -> None:
    assert ACC.score({"acc": value}, "q") == value
    assert ERROR.score({"wer": value}, "q") == 1 - value


@pytest.mark.parametrize(("value", "score"), [(True, 1.0), (0, 0.0), (1 + 1e-12, 1.0)])
def test_values_that_mean_a_bounded_number(value: Any, score: float) -> None:
    assert ACC.score({"acc": value}, "q") == score


@pytest.mark.parametrize(
    "value", [1.01, -0.5, 37.0, float("nan"), float("inf"), None, (0.1, 3), "high", [1]]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        ACC.score({"acc": value}, "task/3")
    assert caught.value.where == "question task/3"

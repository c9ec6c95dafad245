"""Metrics of lm-eval tasks that a gate can use: a number in [0, 1] per document."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

from pipeline.core.errors import EvaluationDataError

NO_FILTER = "none"  # lm-eval's name where a task has no filters
# Per document lm-eval gives these as a pair or as nothing, for any name of the aggregation.
_NOT_NUMBERS = frozenset({"likelihood", "bypass", "brier_score", "mcc"})
_SLACK = 1e-9  # of floating-point numbers about 0 and 1


class Metric(NamedTuple):
    """One entry of a task's metric list."""

    name: str  # lm-eval's
    aggregation: str  # lm-eval's name for how documents make one number
    higher_is_better: bool  # the direction
    filter: str = NO_FILTER  # which of the task's answer filters it is taken after
    needs_hub: bool = False  # whether its code has to be downloaded

    @property
    def usable(self) -> bool:
        """Whether it is a mean of one number per document; the answers show the range."""
        return self.aggregation == "mean" and self.name not in _NOT_NUMBERS and not self.needs_hub

    @property
    def label(self) -> str:
        """Name in reports; `1 - x` if lower values of x are better."""
        name = self.name if self.filter == NO_FILTER else f"{self.name},{self.filter}"
        return name if self.higher_is_better else f"1 - {name}"


def choose_metric(
    task: str, metrics: Sequence[Metric], filters: Sequence[str], wanted: str | None
) -> Metric:
    """Return the requested metric, or the task's first; EvaluationDataError if unusable.

    Args:
        filters: names of the task's answer filters, in its order; may be empty.
        wanted: `metric` or `metric,filter`; the default is the first filter.
    """
    filters = list(filters) or [NO_FILTER]
    name, _, filter_name = (wanted or metrics[0].name).partition(",")
    found = next((metric for metric in metrics if metric.name == name.strip()), None)
    usable = [metric.name for metric in metrics if metric.usable]
    listed = ", ".join(usable) if usable else "none of this task's"
    if found is None:
        raise EvaluationDataError(
            f"the task has no metric '{name}'",
            where=f"lm-eval task {task}",
            hint=f"metrics that a gate can use: {listed}",
        )
    if not found.usable:
        why = "is loaded from the Hub" if found.needs_hub else "is not a mean over documents"
        raise EvaluationDataError(
            f"the metric '{found.name}' {why} ({found.aggregation}), so it cannot be judged "
            "question by question",
            where=f"lm-eval task {task}",
            hint=f"set 'metric' in the policy; metrics that a gate can use: {listed}",
        )
    chosen_filter = filter_name.strip() or filters[0]
    if chosen_filter not in filters:
        raise EvaluationDataError(
            f"the task has no filter '{chosen_filter}'",
            where=f"lm-eval task {task}, metric {wanted}",
            hint=f"filters of this task: {', '.join(filters)}",
        )
    return found._replace(filter=chosen_filter)


def score_of(value: Any, metric: Metric, question: str) -> float:
    """Return a document's score, higher better, in [0, 1]."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number) or not -_SLACK <= number <= 1 + _SLACK:
        raise EvaluationDataError(
            f"the metric '{metric.name}' is {value!r} here, not a number from 0 to 1",
            where=f"question {question}",
            hint="set 'metric' in the policy to one of the task's that is bounded so, such as "
            "acc or exact_match",
        )
    bounded = min(1.0, max(0.0, number))
    return bounded if metric.higher_is_better else 1 - bounded

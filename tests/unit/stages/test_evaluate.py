"""What a suite's score is called in verdicts and reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.stages.evaluate import metric_of
from recipes.policy import AnySuite, HumanEvalSuite, Margin, MbppSuite, MmluSuite, RougeSuite

MARGINS: Any = {"fp8": Margin(points=0.1)}


@pytest.mark.parametrize(
    ("suite", "metric"),
    [
        (MmluSuite(margins=MARGINS), "acc"),
        (MmluSuite(margins=MARGINS, form="cloze"), "acc_norm"),
        (HumanEvalSuite(margins=MARGINS), "pass@1"),
        (MbppSuite(margins=MARGINS, samples=10, k=5), "pass@5"),
        (RougeSuite(margins=MARGINS, metric="bleu"), "bleu"),
    ],
)
def test_the_metric_of_each_kind(suite: AnySuite, metric: str) -> None:
    context: Any = SimpleNamespace(parameters=SimpleNamespace(suite=suite))
    assert metric_of(context) == metric

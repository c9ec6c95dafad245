"""Cost and verbosity from recorded answers, and the level of their intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from eval_gates.cost import (
    CostResult,
    CostRule,
    cost_ratio,
    cost_rule_of,
    judge_cost,
    tokens_ratio,
    work_of,
)
from eval_gates.rows import Answer
from eval_gates.suites.humaneval import HumanEval
from recipes.policy import CostGate

RULE = CostRule(tier="supporting", max_ratio=1.2, alpha=0.05, cap=400)


def rows(
    tokens: list[list[int]],
    scores: list[float],
) -> list[Answer]:
    """Answers to questions 0, 1, ..."""
    return [
        Answer(str(number), "p", score, tokens=tuple(each), truncated=each.count(RULE.cap))
        for number, (each, score) in enumerate(zip(tokens, scores, strict=True))
    ]


def judged(longer: float, n: int = 600, solved: float = 1.0) -> CostResult:
    """Return the report on a variant whose answers are that much longer."""
    lengths = 100 + 20 * np.sin(np.arange(n))
    draw = np.random.default_rng(1).normal(1, 0.3, n)
    baseline = rows([[round(each)] for each in lengths], [1.0] * n)
    scores = [1.0] * round(solved * n) + [0.0] * (n - round(solved * n))
    longer_ones = [[max(1, round(longer * a * b))] for a, b in zip(lengths, draw, strict=True)]
    return judge_cost("gsm8k", RULE, baseline, rows(longer_ones, scores))


@pytest.mark.parametrize(
    ("longer", "solved", "verdict"),
    [(1.0, 1.0, "pass"), (1.6, 1.0, "fail"), (1.2, 1.0, "undecided"), (1.1, 0.7, "fail")],
)
def test_a_variant_is_judged_by_its_tokens(longer: float, solved: float, verdict: str) -> None:
    found = judged(longer, solved=solved)
    assert found.verdict == verdict
    assert found.estimate == pytest.approx(longer / solved, rel=0.05)
    assert found.tokens.ratio == pytest.approx(longer, rel=0.05)
    assert found.baseline == pytest.approx(100, rel=0.05)
    assert found.candidate == pytest.approx(100 * longer / solved, rel=0.05)
    assert "another cap or effort are not comparable" in found.reason


def test_few_problems_have_no_interval() -> None:
    found = judged(1.6, n=499)
    assert (found.verdict, found.lower, found.upper) == ("undecided", None, None)
    assert found.estimate is not None
    assert "too few" in found.reason


def test_a_side_that_solves_nothing_has_no_cost() -> None:
    found = judged(1.0, solved=0.0)
    assert (found.verdict, found.estimate) == ("undecided", None)
    assert found.candidate is None


def test_a_truncated_answer_is_unsolved_and_samples_are_means() -> None:
    tokens, solved = work_of("s", rows([[400], [100, 300]], [1.0, 0.5]))
    assert tokens.tolist() == [400, 200]
    assert solved.tolist() == [0.0, 0.5]


def test_other_questions_and_rows_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="same questions"):
        judge_cost("s", RULE, rows([[1]], [1.0]), [replace(rows([[1]], [1.0])[0], id="x")])
    with pytest.raises(ValueError, match="no number of tokens"):
        work_of("s", [Answer("0", "p", 1.0)])


def test_the_cap_is_the_suites_or_the_length() -> None:
    gate = CostGate(suites=["code"], max_ratio={"fp8": 1.1})
    suite = HumanEval.policy(margins={"fp8": 0.1}, max_tokens=256)
    assert cost_rule_of(gate, suite, "fp8", 0.05, 4096).cap == 256
    assert cost_rule_of(gate, suite, "fp8", 0.05, 128).cap == 128
    with pytest.raises(LookupError):
        cost_rule_of(gate, suite, "int4", 0.05, 128)


def test_it_cannot_be_critical() -> None:
    with pytest.raises(ValidationError):
        CostGate.model_validate({"suites": ["a"], "max_ratio": {"fp8": 1.1}, "tier": "critical"})


def test_level_at_the_limit() -> None:
    """True ratio 1.15, usual lengths and solve rates: the bounds err in at most 5 % and noise."""
    draw, runs, n, alpha = np.random.default_rng(2), 600, 600, 0.05
    wrong = np.zeros(4)
    for _ in range(runs):
        common = draw.lognormal(5, 0.6, n)
        before = common * draw.lognormal(0, 0.3, n)
        after = 1.15 * common * draw.lognormal(0, 0.3, n)
        solved = (draw.random(n) < 0.7).astype(float)
        cost = cost_ratio((before, solved), (after, solved), alpha)
        tokens = tokens_ratio(before, after, alpha)
        for place, found in enumerate((cost, tokens)):
            assert found.lower is not None
            assert found.upper is not None
            wrong[2 * place : 2 * place + 2] += (found.upper < 1.15, found.lower > 1.15)
    assert wrong.max() / runs <= alpha + 2 * math.sqrt(alpha * (1 - alpha) / runs) + 0.01

"""The gate `cost` from recorded answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_reports import speed_claim

from eval_gates.cost import CostReport, CostRule, cost_rule_of, judge_cost, work_of
from eval_gates.suites.humaneval import HumanEvalSuite
from recipes.cost import CostGate

RULE = CostRule(tier="critical", max_ratio=1.2, alpha=0.05, cap=400)


def rows(tokens: list[list[int]], scores: list[float], **fields: Any) -> list[dict[str, Any]]:
    """Answers to questions 0, 1, ..."""
    return [
        {"id": str(number), "score": score, "tokens": each, "truncated": each.count(RULE.cap)}
        | {key: values[number] for key, values in fields.items()}
        for number, (each, score) in enumerate(zip(tokens, scores, strict=True))
    ]


def judged(longer: float, n: int = 200, **changes: Any) -> CostReport:
    """Return the report on a variant whose answers are that much longer."""
    lengths = 100 + 20 * np.sin(np.arange(n))
    baseline = rows([[round(each)] for each in lengths], [1.0] * n)
    candidate = rows([[round(longer * each)] for each in lengths], [1.0] * n)
    return judge_cost("gsm8k", RULE.model_copy(update=changes), baseline, candidate)


@pytest.mark.parametrize(("longer", "verdict"), [(1.0, "pass"), (1.6, "fail"), (1.2, "undecided")])
def test_a_variant_is_judged_by_its_tokens(longer: float, verdict: str) -> None:
    found = judged(longer)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(longer, rel=0.01)
    assert found.upper is not None
    assert found.lower < found.ratio < found.upper
    assert found.baseline.tokens_per_solved_task == pytest.approx(100, rel=0.01)
    assert (found.p_value <= RULE.alpha) == (verdict == "pass")


def test_too_few_problems_are_told() -> None:
    assert "problems are needed" in judged(1.0, n=20).reason


def test_a_baseline_that_solves_nothing_decides_nothing() -> None:
    nothing = rows([[100]] * 40, [0.0] * 40)
    found = judge_cost("gsm8k", RULE, nothing, nothing)
    assert found.verdict == "undecided"
    assert found.ratio is found.upper is found.baseline.tokens_per_solved_task is None
    assert "insensitive" in found.reason


def test_a_truncated_answer_is_unsolved() -> None:
    found = work_of("s", rows([[400, 100, 100, 100], [100] * 4, [400]], [1.0, 0.5, 1.0]), 400)
    assert found.solved.tolist() == [0.75, 0.5, 0.0]
    assert found.tokens.tolist() == [175, 100, 400]


def test_the_mean_of_a_cluster_counts() -> None:
    answers = rows([[100], [300], [50]], [1.0, 0.0, 1.0], cluster=["a", "a", "b"])
    found = work_of("s", answers, 400)
    assert (found.tokens.tolist(), found.solved.tolist()) == ([200, 50], [0.5, 1])


@pytest.mark.parametrize(
    "change", [{"tokens": None}, {"tokens": []}, {"tokens": [500]}, {"id": "other"}]
)
def test_answers_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    answers = rows([[100]] * 3, [1.0] * 3)
    with pytest.raises(ValueError, match=r"tokens|same questions"):
        judge_cost("s", RULE, answers, [*answers[:2], answers[2] | change])


def test_a_throughput_ratio_gives_the_time_of_a_solved_task() -> None:
    answers = rows([[100]] * 200, [1.0] * 200)
    speed = [speed_claim(kind="slo", gate="slo.0"), speed_claim(estimate=1.5, lower=1.25)]
    time = judge_cost("s", RULE, answers, answers, speed).time
    assert time is not None
    assert (time.gate, time.alpha) == ("ratio.chat", pytest.approx(0.1))
    assert time.seconds_ratio == pytest.approx(1 / 1.5)
    upper = judge_cost("s", RULE, answers, answers).upper
    assert upper is not None
    assert time.upper == pytest.approx(upper / 1.25)


def test_without_a_bound_of_the_speed_the_time_has_none() -> None:
    answers = rows([[100]] * 200, [1.0] * 200)
    found = judge_cost("s", RULE, answers, answers, [speed_claim(lower=None)])
    assert found.time is not None
    assert found.time.upper is None
    assert "point estimate" in found.reason
    assert judge_cost("s", RULE, answers, answers, [speed_claim(estimate=None)]).time is None


def test_the_cap_is_the_suites_or_what_the_model_can_hold() -> None:
    gate = CostGate(suites=["code"], max_ratio={"fp8": 1.05})
    for asked, cap in ((512, 512), ("model", 4096), (9_999, 4096)):
        suite = HumanEvalSuite.model_validate(
            {"kind": "humaneval", "margins": {"fp8": 0.1}, "max_tokens": asked, "test": "fixed"}
        )
        assert cost_rule_of(gate, suite, "fp8", 0.05, 4096).cap == cap
    with pytest.raises(LookupError, match="int4"):
        cost_rule_of(gate, suite, "int4", 0.05, 4096)

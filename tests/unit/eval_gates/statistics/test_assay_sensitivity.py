"""Insensitive gates: how often a margin that reaches a chance baseline is accepted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.chance_baselines import check_sensitivities, sensitivity_state
from eval_gates.statistics.assay_sensitivity import (
    check_sensitivity,
    min_questions_for_sensitivity,
    swap_p_value,
)
from eval_gates.statistics.comparison import Comparison

ALPHA = 0.05
TRIALS = 400
WORST = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / TRIALS)


def share_that_sees(draw: Any, chance_scores: float, margin: Comparison, n: int) -> float:
    generator = np.random.default_rng(4)
    return float(
        np.mean(
            [
                check_sensitivity(
                    "guessing", draw(generator, n).tolist(), chance_scores, margin, None
                ).p_insensitive
                <= ALPHA
                for _ in range(TRIALS)
            ]
        )
    )


@pytest.mark.parametrize("n", [64, 1000])
@pytest.mark.parametrize(
    ("right", "guessing", "margin"),
    [
        (0.25, 0.25, Comparison.points(1e-6)),  # at chance, in as many looks as questions
        (0.30, 0.25, Comparison.points(0.05)),
        (0.05, 0.0, Comparison.points(0.05)),
        (0.5, 0.25, Comparison.recovery(0.5)),
    ],
)
def test_a_margin_that_just_reaches_down_to_guessing(
    n: int, right: float, guessing: float, margin: Comparison
) -> None:
    """The level holds over all looks: seven rounds of an exact test let 19 % through."""
    seen = share_that_sees(lambda g, k: (g.random(k) < right) * 1.0, guessing, margin, n)
    assert seen <= WORST


def test_a_baseline_well_above_it_is_seen_soon() -> None:
    wide, narrow = Comparison.points(0.15), Comparison.points(0.01)
    easy = share_that_sees(lambda g, k: (g.random(k) < 0.75) * 1.0, 0.25, wide, 64)
    usual = share_that_sees(lambda g, k: (g.random(k) < 0.65) * 1.0, 0.25, narrow, 128)
    assert min(easy, usual) > 0.97


def rows(scores: list[float], unrelated: list[float]) -> list[dict[str, Any]]:
    return [{"score": s, "unrelated": u} for s, u in zip(scores, unrelated, strict=True)]


def test_summaries_that_fit_any_document_as_well() -> None:
    """Answers scored against swapped references, where all differ in how easy they are."""
    generator = np.random.default_rng(8)
    margin, seen = Comparison.points(0.02), 0
    for _ in range(TRIALS):
        easiness = generator.beta(2, 10, 400)
        score = (easiness + 0.02 + generator.normal(0, 0.05, 400)).clip(0, 1)
        elsewhere = easiness.reshape(-1, 2)[:, ::-1].ravel()
        found = check_sensitivities(rows(list(score), list(elsewhere)), 0.0, margin, None)
        assert [each.kind for each in found] == ["nothing", "unrelated"]
        seen += found[1].p_insensitive <= ALPHA
    assert seen / TRIALS <= WORST


@pytest.mark.parametrize("n", [64, 1000])
def test_guesses_are_no_fact_of_a_benchmark(n: int) -> None:
    """Counting a finite list would put every third baseline at chance above it."""
    generator, margin, seen = np.random.default_rng(6), Comparison.points(0.01), 0
    for _ in range(TRIALS):
        scores = (generator.random(n) < 0.25) * 1.0
        found = check_sensitivities([{"score": s} for s in scores.tolist()], 0.25, margin, n)
        seen += sensitivity_state(found, ALPHA) == "clear"
    assert seen / TRIALS <= WORST


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.normal(0, 0.05, 300),
        lambda generator: generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=300),
        lambda generator: generator.standard_t(1.5, 300).clip(-10, 10) / 10,
    ],
)
def test_answers_that_do_for_any_question(draw: Any) -> None:
    generator = np.random.default_rng(9)
    p_values = [swap_p_value(draw(generator).tolist()) for _ in range(TRIALS)]
    assert np.mean(np.asarray(p_values) <= ALPHA) <= WORST


def test_answers_that_fit_their_own_questions() -> None:
    """16 pairs of summaries that score 23 %, and 11 % swapped, as the demo's do."""
    generator = np.random.default_rng(9)
    p_values = [swap_p_value(generator.normal(0.12, 0.08, 16).tolist()) for _ in range(100)]
    assert np.mean(np.asarray(p_values) <= ALPHA) >= 0.95
    assert swap_p_value([]) == swap_p_value([0.0] * 50) == 1


def test_summaries_of_their_documents_are_seen() -> None:
    generator = np.random.default_rng(8)
    score, elsewhere = generator.beta(5, 15, 400), generator.beta(2, 15, 400)
    found = check_sensitivities(
        rows(list(score), list(elsewhere)), 0.0, Comparison.points(0.02), None
    )
    assert sensitivity_state(found, ALPHA) == "clear"
    assert found[1].score == pytest.approx(elsewhere.mean())


def test_of_a_finite_benchmark_the_last_answer_tells() -> None:
    """37.5 % of 16 problems less 25 points is above 0; less 37.5 it is not."""
    answers = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    for margin, state in ((0.25, "clear"), (0.36, "clear"), (0.38, "insensitive")):
        found = check_sensitivities(
            [{"score": s} for s in answers], 0.0, Comparison.points(margin), 16
        )
        assert sensitivity_state(found, ALPHA) == state
    exactly = check_sensitivities(
        [{"score": s} for s in answers], 0.0, Comparison.points(0.375), 16
    )
    assert sensitivity_state(exactly, ALPHA) == "open"


def test_an_empty_answer_may_score_most() -> None:
    """As where half of the questions cannot be answered, and the right answer is none."""
    answers = [{"score": 0.55, "empty": 0.5, "unrelated": 0.1}] * 400
    found = {s.kind: s for s in check_sensitivities(answers, 0.0, Comparison.points(0.1), None)}
    assert found["unrelated"].p_insensitive <= ALPHA < found["empty"].p_insensitive
    assert sensitivity_state(list(found.values()), ALPHA) == "insensitive"


def test_one_answer_shows_nothing_of_other_questions() -> None:
    found = check_sensitivities(rows([1.0], [0.0]), 0.0, Comparison.points(0.01), None)
    assert sensitivity_state(found, ALPHA) == "open"


@settings(max_examples=60, deadline=None)
@given(
    margin=st.sampled_from([Comparison.points(m) for m in (0.001, 0.05, 0.3, 0.74, 0.76, 0.9)])
    | st.sampled_from([Comparison.recovery(r) for r in (0.2, 0.25, 0.26, 0.6, 0.99)]),
    guessing=st.sampled_from([0.0, 0.25, 0.5]),
    population=st.sampled_from([None, 40]),
)
def test_the_least_is_what_a_faultless_baseline_needs(
    margin: Comparison, guessing: float, population: int | None
) -> None:
    least = min_questions_for_sensitivity(margin, guessing, ALPHA, population)

    def sees(n: int) -> bool:
        return (
            check_sensitivity("guessing", [1.0] * n, guessing, margin, population).p_insensitive
            <= ALPHA
        )

    if least is None:
        assert margin.weight + margin.threshold <= guessing
        assert not sees(40)
    elif least <= 5000:
        assert sees(least)
        assert least == 1 or not sees(least - 1)

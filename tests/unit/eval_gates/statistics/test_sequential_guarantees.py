"""Error rates of the sequential gate where they are largest: a true drop of exactly the margin.

2,000 replays each, judged at every question by the evidence that judges a real run (test_sequential
shows that the two agree). Alpha is 5 %; 6 % leaves room for the error of so many replays.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import log_evidence, sequential_test

REPLAYS, QUESTIONS, ALPHA = 2000, 500, 0.05
Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Values]


def from_outcomes(values: list[float], chances: list[float]) -> tuple[Draw, Draw]:
    """Draws of right-or-wrong answers: of an endless stock, and of one benchmark in any order."""

    def with_replacement(generator: np.random.Generator) -> Values:
        return generator.choice(values, size=(REPLAYS, QUESTIONS), p=chances)

    def without(generator: np.random.Generator) -> Values:
        counts = [round(chance * QUESTIONS) for chance in chances]
        benchmark = np.repeat(values, counts)
        assert benchmark.size == QUESTIONS
        return generator.permuted(np.tile(benchmark, (REPLAYS, 1)), axis=1)

    return with_replacement, without


MARGIN, SHARE = 0.04, 0.9
POINTS, RECOVERY = Comparison.points(MARGIN), Comparison.recovery(SHARE)

# 12 % lost and 8 % gained: a drop of 4 points.
BINARY = from_outcomes([-1.0, 1.0, 0.0], [0.12, 0.08, 0.8])
# 60 % right before, 8 % lost and 2 % gained: 54 % right after, 0.9 of the baseline.
RECOVERED = from_outcomes([-SHARE, 1.0, 1 - SHARE, 0.0], [0.08, 0.02, 0.52, 0.38])


def rouge_like(generator: np.random.Generator) -> Values:
    """Every score changes, skewed: many gains, few large losses; standard deviation 0.18."""
    return np.asarray(1.1 * (2 / 7 - generator.beta(2, 5, size=(REPLAYS, QUESTIONS))) - MARGIN)


def rouge_benchmark(generator: np.random.Generator) -> Values:
    benchmark = rouge_like(generator)[0]
    benchmark += -MARGIN - benchmark.mean()
    return generator.permuted(np.tile(benchmark, (REPLAYS, 1)), axis=1)


CASES = {
    "binary, with replacement": (POINTS, BINARY[0], None),
    "binary, without": (POINTS, BINARY[1], QUESTIONS),
    "bounded, with replacement": (POINTS, rouge_like, None),
    "bounded, without": (POINTS, rouge_benchmark, QUESTIONS),
    "recovery, with replacement": (RECOVERY, RECOVERED[0], None),
    "recovery, without": (RECOVERY, RECOVERED[1], QUESTIONS),
}


def ever(log: Values) -> float:
    """The share of replays whose evidence was enough at any question."""
    return float((log >= -math.log(ALPHA)).any(axis=1).mean())


@pytest.mark.parametrize("name", CASES)
def test_at_the_boundary_neither_verdict_falls_more_often_than_alpha(name: str) -> None:
    comparison, draw, population = CASES[name]
    values = draw(np.random.default_rng(11))
    assert float(values.mean()) == pytest.approx(comparison.threshold, abs=0.002)
    log_pass, log_fail = log_evidence(values, comparison, population)
    promoted, rejected = ever(log_pass), ever(log_fail)
    assert promoted <= 0.06
    assert rejected <= 0.06
    assert promoted + rejected > 0.005  # it does look: a gate that never speaks proves nothing


def test_naive_peeking_on_the_same_replays_promotes_over_20_percent() -> None:
    values = BINARY[0](np.random.default_rng(11))
    counts = np.arange(1, QUESTIONS + 1)
    means = np.cumsum(values, axis=1) / counts
    deviations = np.sqrt(np.cumsum(values**2, axis=1) / counts - means**2)
    wald = means - 1.645 * deviations / np.sqrt(counts)
    looks = wald[:, 49::10] > -MARGIN  # after each batch of 10, and not before 50 questions
    at_the_end = float((wald[:, -1] > -MARGIN).mean())
    assert float(looks.any(axis=1).mean()) > 0.2
    assert at_the_end < 0.07  # the very same bound is right if it is used a single time


@pytest.mark.parametrize("population", [None, QUESTIONS])
def test_with_no_drop_it_mostly_passes(population: int | None) -> None:
    draws = from_outcomes([-1.0, 1.0, 0.0], [0.02, 0.02, 0.96])
    values = draws[0 if population is None else 1](np.random.default_rng(4))
    log_pass, log_fail = log_evidence(values, POINTS, population)
    assert ever(log_pass) > 0.9
    assert ever(log_fail) < 0.01


def test_file_order_breaks_the_guarantee_that_a_seeded_order_keeps() -> None:
    """A benchmark sorted by subject, whose last subject is the one that the candidate lost."""
    before = np.ones(QUESTIONS)
    after = np.where(np.arange(QUESTIONS) < 470, 1.0, 0.0)  # a drop of 6 points, margin 4
    in_file_order = sequential_test(before.tolist(), after.tolist(), POINTS, ALPHA, QUESTIONS)
    assert in_file_order.verdict == "pass"  # wrong, and it would be in every run

    values = np.tile(POINTS.values(before.tolist(), after.tolist()), (REPLAYS, 1))
    shuffled = np.random.default_rng(8).permuted(values, axis=1)
    assert ever(log_evidence(shuffled, POINTS, QUESTIONS)[0]) <= 0.06
    order = np.random.default_rng(2024).permutation(QUESTIONS)
    seeded = sequential_test(
        before[order].tolist(), after[order].tolist(), POINTS, ALPHA, QUESTIONS
    )
    assert seeded.verdict == "fail"


@pytest.mark.parametrize("name", ["binary, with replacement", "recovery, without"])
def test_bounds_hold_at_the_question_where_one_stops(name: str) -> None:
    """Stopping where the lower bound looks best is as good as any other way of cheating."""
    comparison, draw, population = CASES[name]
    values = draw(np.random.default_rng(12))[:100]
    log_pass, _ = log_evidence(values, comparison, population)
    above = 0
    for row, logs in zip(values, log_pass, strict=True):
        stop = min(int(logs.argmax()) + 1, QUESTIONS - 1)
        lost, kept = np.zeros(stop), np.zeros(stop)
        # Any two scores that give the value: the test sees only their combination.
        weight = comparison.weight
        kept[:] = np.clip(row[:stop], 0, 1)
        lost[:] = np.where(row[:stop] < 0, -row[:stop] / weight, 0)
        result = sequential_test(lost.tolist(), kept.tolist(), comparison, ALPHA, population)
        assert result.lower is not None
        above += result.lower > comparison.threshold + 1e-6
    assert above <= 10  # 5 expected at most; 10 of 100 are exceeded once in 90 times

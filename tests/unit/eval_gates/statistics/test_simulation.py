"""Imagined runs agree with the real gate, and their answers are as described."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import log_evidence
from eval_gates.statistics.simulation import (
    PairedOutcomes,
    _count_log_wealth,
    _draw_without_replacement,
    outcomes,
    simulate_runs,
)

SHARES = st.floats(0, 1)


@pytest.mark.parametrize("planned", [None, 0.6])
@pytest.mark.parametrize("population", [None, 120])
@pytest.mark.parametrize("comparison", [Comparison.points(0.1), Comparison.recovery(0.9)])
def test_blocks_of_one_question_are_the_real_gate(
    comparison: Comparison, population: int | None, planned: float | None
) -> None:
    outcome = outcomes(comparison, 0.3, 1.0, 0.05, 0.6)
    drawn = np.random.default_rng(1).choice(len(outcome.values), size=(20, 90), p=outcome.chances)
    values = np.asarray(outcome.values)
    counts = (drawn[..., None] == np.arange(values.size)).astype(np.int64)
    ours = _count_log_wealth(
        counts,
        np.ones(90, dtype=np.int64),
        values - comparison.lowest,
        comparison.threshold - comparison.lowest,
        population,
        planned,
    )
    real, _ = log_evidence(values[drawn], comparison, population, planned)
    assert ours == pytest.approx(real, abs=1e-9)


@pytest.mark.parametrize("population", [None, 1000])
def test_larger_blocks_are_close_to_the_real_gate(population: int | None) -> None:
    comparison = Comparison.points(0.05)
    values = np.asarray([-1.0, 1.0, 0.0])
    benchmark = np.repeat([0, 1, 2], [60, 40, 900])
    drawn = np.random.default_rng(2).permuted(np.tile(benchmark, (20, 1)), axis=1)[:, :800]
    counts = (drawn[..., None] == np.arange(3)).reshape(20, 50, 16, 3).sum(axis=2)
    ours = _count_log_wealth(
        counts, np.full(50, 16), values + 1, 1 + comparison.threshold, population
    )
    real, _ = log_evidence(values[drawn], comparison, population)
    assert ours == pytest.approx(real[:, 15::16], abs=0.15)


def test_a_benchmark_is_drawn_whole_and_no_question_twice() -> None:
    outcome = PairedOutcomes((-1.0, 1.0, 0.0), (0.5, 0.5, 0.0))
    sizes = np.asarray([2, 2, 3], dtype=np.int64)
    drawn = _draw_without_replacement(outcome, 7, sizes, 50, np.random.default_rng(3))
    assert (drawn.sum(axis=2) == sizes).all()
    assert (drawn.min(), drawn[..., 2].max()) == (0, 0)
    whole = drawn.sum(axis=1)
    assert (whole.sum(axis=1) == 7).all()
    assert len({tuple(each) for each in whole.tolist()}) > 3  # each run has its own list


@given(SHARES, st.floats(0.05, 1), SHARES)
def test_points_have_the_asked_for_drop(flips: float, size: float, share: float) -> None:
    drop = share * size
    outcome = outcomes(Comparison.points(0.01), flips, size, drop, 1.0)
    assert min(outcome.chances) >= 0
    assert sum(outcome.chances) == pytest.approx(1)
    assert np.dot(outcome.values, outcome.chances) == pytest.approx(-drop, abs=1e-9)
    if drop / size <= flips:
        assert outcome.chances[0] + outcome.chances[1] == pytest.approx(flips)


@given(SHARES, SHARES, SHARES)
def test_recovery_has_the_asked_for_drop(flips: float, baseline: float, share: float) -> None:
    drop = share * baseline
    outcome = outcomes(Comparison.recovery(0.9), flips, 1.0, drop, baseline)
    assert min(outcome.chances) >= 0
    assert sum(outcome.chances) == pytest.approx(1)
    expected = baseline - drop - 0.9 * baseline
    assert np.dot(outcome.values, outcome.chances) == pytest.approx(expected, abs=1e-9)


def test_recovery_of_bounded_scores_has_the_asked_for_drop() -> None:
    outcome = outcomes(Comparison.recovery(0.9), 0.8, 0.1, 0.02, 0.3)
    assert np.dot(outcome.values, outcome.chances) == pytest.approx(0.28 - 0.27)


def test_runs_are_decided_the_way_the_truth_lies() -> None:
    comparison = Comparison.points(0.05)
    for drop, passed, failed in ((0.0, 0.9, 0.0), (0.2, 0.0, 0.9)):
        runs = simulate_runs(
            outcomes(comparison, 0.1, 1.0, drop, 1.0),
            comparison,
            alpha=0.05,
            questions=1000,
            population=None,
            runs=200,
            blocks=100,
            seed=4,
        )
        assert runs.passed.mean() >= passed
        assert runs.failed.mean() >= failed
        assert not (runs.passed & runs.failed).any()
        assert ((runs.passed_at == -1) | (runs.passed_at % 10 == 0)).all()


@pytest.mark.parametrize(
    ("flips", "size", "drop", "baseline", "words"),
    [
        (1.1, 1, 0, 1, "flips"),
        (0.1, 0, 0, 1, "flip_size"),
        (0.1, 1, 0, 1.5, "baseline"),
        (0.1, 0.2, 0, 0.9, "cannot move"),
        (0.1, 1, 0.6, 0.5, "drop must be between 0 and 0.5"),
        (0.1, 1, -0.1, 0.5, "drop must be"),
    ],
)
def test_impossible_answers_are_refused(
    flips: float, size: float, drop: float, baseline: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        outcomes(Comparison.recovery(0.9), flips, size, drop, baseline)

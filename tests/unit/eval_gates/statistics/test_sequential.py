"""The sequential gate on answers whose verdict is known, and properties that hold for any."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.statistics.betting import bets
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import (
    MAX_PATH_POINTS,
    REFUTED_LOG10,
    SequentialResult,
    log_evidence,
    sequential_test,
)

POINT = Comparison.points(0.01)
FULL = 14_042


def answers(n: int, flips: float, lost: float, seed: int) -> tuple[list[float], list[float]]:
    """Right-or-wrong answers of which a share flips, `lost` of those from right to wrong."""
    random = np.random.default_rng(seed).random((2, n))
    flipped, loses = random[0] < flips, random[1] < lost
    return (
        np.where(flipped, loses, random[1] < 0.65).astype(float).tolist(),
        np.where(flipped, ~loses, random[1] < 0.65).astype(float).tolist(),
    )


def wealth_by_hand(
    values: list[float], comparison: Comparison, population: int | None, planned: float | None
) -> float:
    """The e-value against 'inferior' after all values, straight from the paper's formulas."""
    low, threshold = comparison.lowest, comparison.threshold
    half = 1.0 if planned is None else 0.5
    stakes = [(bet, half / len(bets())) for bet in bets()]
    if planned is not None:
        stakes.append((planned, half))
    total = 0.0
    for bet, stake in stakes:
        wealth, seen = 1.0, 0.0
        for index, value in enumerate(values):
            null = threshold
            if population is not None:
                null = (population * threshold - seen) / (population - index)
            wealth *= 1 + bet / (null - low) * (value - null)
            seen += value
        total += stake * wealth
    return total


@pytest.mark.parametrize("population", [None, 150])
@pytest.mark.parametrize("comparison", [Comparison.points(0.1), Comparison.recovery(0.9)])
@pytest.mark.parametrize("planned", [None, 0.37])
def test_evidence_is_the_papers(
    comparison: Comparison, population: int | None, planned: float | None
) -> None:
    before, after = answers(60, 0.2, 0.5, seed=1)
    values = comparison.values(before, after)
    log_pass, _ = log_evidence(values, comparison, population, planned)
    for n in (1, 10, 60):
        expected = wealth_by_hand(values[:n].tolist(), comparison, population, planned)
        assert math.exp(log_pass[n - 1]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("population", "figures"),
    [
        (None, (284, 0.003585167417206593, -0.029049964912654436, 0.022343079699758572)),
        (900, (182, 1.223292223749927e-06, -0.018560944465246254, 0.01570417542416569)),
    ],
)
def test_an_even_stake_without_a_planned_bet(
    population: int | None, figures: tuple[float, ...]
) -> None:
    result = sequential_test(
        *answers(600, 0.06, 0.55, 3), Comparison.points(0.04), 0.05, population
    )
    now = (result.decided_at, result.p_inferior, result.lower, result.upper)
    assert now == pytest.approx(figures, rel=1e-12)


@pytest.mark.parametrize("population", [None, 200])
def test_rows_of_replays_are_judged_like_a_single_run(population: int | None) -> None:
    comparison = Comparison.points(0.1)
    runs = [answers(200, 0.2, 0.3 + 0.2 * seed, seed) for seed in range(3)]
    rows = np.stack([comparison.values(*run) for run in runs])
    log_pass, log_fail = log_evidence(rows, comparison, population)
    for index, run in enumerate(runs):
        result = sequential_test(*run, comparison, 0.05, population, bounds=False)
        assert result.p_inferior == min(1, math.exp(-log_pass[index].max()))
        log10_fail = np.minimum(log_fail[index] / math.log(10), REFUTED_LOG10)
        assert [point.log10_fail for point in result.e_process] == log10_fail.tolist()


def test_no_flips_pass_after_500_questions_of_a_full_benchmark() -> None:
    same = [1.0] * 9000 + [0.0] * (FULL - 9000)
    drawn, whole = (sequential_test(same, same, POINT, 0.05, size) for size in (None, FULL))
    assert (drawn.verdict, drawn.decided_at) == ("pass", 496)
    assert (whole.verdict, whole.decided_at) == ("pass", 487)
    assert drawn.lower is not None
    assert -0.001 < drawn.lower < 0
    assert whole.lower == whole.upper == whole.mean == 0
    assert whole.p_inferior == 0
    assert whole.e_process[-1].log10_pass == REFUTED_LOG10


@pytest.mark.parametrize(("lost", "verdict"), [(1.0, "fail"), (0.0, "pass")])
@pytest.mark.parametrize("population", [None, 50])
def test_all_flips_one_way_are_decided_at_once(
    lost: float, verdict: str, population: int | None
) -> None:
    before, after = [lost] * 50, [1 - lost] * 50
    result = sequential_test(before, after, POINT, 0.05, population)
    assert result.verdict == verdict
    assert result.decided_at is not None
    assert result.decided_at <= 8


def test_even_flips_of_all_answers_stay_open() -> None:
    before = [1.0, 0.0] * 100
    result = sequential_test(before, before[::-1], POINT, 0.05, None)
    assert result.verdict == "open"
    assert result.decided_at is None
    assert result.p_inferior > 0.05
    assert max(point.log10_fail for point in result.e_process) < math.log10(20)


def test_one_question_decides_nothing_but_a_benchmark_of_one() -> None:
    result = sequential_test([1], [1], POINT, 0.05, None)
    assert (result.verdict, result.n, len(result.e_process)) == ("open", 1, 1)
    assert sequential_test([1], [1], POINT, 0.05, 2).verdict == "open"
    assert sequential_test([1], [1], POINT, 0.05, 1).verdict == "pass"
    assert sequential_test([1], [0], POINT, 0.05, 1).verdict == "fail"


def test_ties_of_bounded_scores_count_as_no_change() -> None:
    tied = sequential_test([0.3] * 600, [0.3] * 600, POINT, 0.05, None)
    assert (tied.verdict, tied.decided_at, tied.mean) == ("pass", 496, 0)


def spread(n: int, lost: int) -> tuple[list[float], list[float]]:
    """All right before, `lost` of them wrong after, evenly spread and the last one lost."""
    after = np.ones(n)
    after[np.linspace(n / lost, n, lost).round().astype(int) - 1] = 0
    return [1.0] * n, after.tolist()


@pytest.mark.parametrize(("n", "lost"), [(100, 1), (300, 3), (700, 7)])
@pytest.mark.parametrize("comparison", [POINT, Comparison.recovery(0.99)])
def test_a_drop_of_exactly_the_margin_fails_at_the_benchmarks_end(
    n: int, lost: int, comparison: Comparison
) -> None:
    result = sequential_test(*spread(n, lost), comparison, 0.05, n)
    assert (result.verdict, result.decided_at) == ("fail", n)
    assert result.e_process[-1].log10_fail == REFUTED_LOG10
    assert result.p_inferior > 0.05


@pytest.mark.parametrize(("lost", "verdict"), [(6, "pass"), (8, "fail")])
def test_a_benchmark_is_decided_by_its_end_one_answer_from_the_margin(
    lost: int, verdict: str
) -> None:
    before, after = spread(700, lost)
    result = sequential_test(before, after, POINT, 0.05, 700)
    assert result.verdict == verdict
    assert result.lower == result.upper == pytest.approx(-lost / 700)


@pytest.mark.parametrize("population", [None, 400])
@pytest.mark.parametrize("lost", [0.0, 0.5, 1.0])
def test_the_size_of_batches_does_not_matter(population: int | None, lost: float) -> None:
    before, after = answers(400, 0.1, lost, seed=5)
    outcomes = set()
    for batch in (1, 7, 64, 400):
        for end in itertools.chain(range(batch, 400, batch), [400]):
            result = sequential_test(
                before[:end], after[:end], Comparison.points(0.05), 0.05, population, bounds=False
            )
            if result.verdict != "open":
                break
        outcomes.add((result.verdict, result.decided_at))
    assert len(outcomes) == 1


def test_the_first_crossing_stays() -> None:
    before = [1.0] * 1200
    after = [1.0] * 600 + [0.0] * 600
    result = sequential_test(before, after, POINT, 0.05, None)
    assert (result.verdict, result.decided_at) == ("pass", 496)
    # The bounds are of all the answers given, and tell that the later ones do not fit.
    assert result.upper is not None
    assert result.upper < -0.01
    assert result.lower == result.mean == -0.5  # the early answers had ruled so low a mean out


def test_the_trail_is_short_and_ends_at_the_end() -> None:
    before, after = answers(3000, 0.1, 0.5, seed=2)
    trail = sequential_test(before, after, POINT, 0.05, None, bounds=False).e_process
    assert len(trail) == MAX_PATH_POINTS
    assert (trail[0].questions, trail[-1].questions) == (1, 3000)
    assert trail[-1].mean == pytest.approx(np.mean(after) - np.mean(before))
    assert all(math.isfinite(p.log10_pass) and math.isfinite(p.log10_fail) for p in trail)


def test_bounds_are_left_out_on_request() -> None:
    result = sequential_test([1.0] * 5, [1.0] * 5, POINT, 0.05, None, bounds=False)
    assert result.lower is None
    assert result.upper is None


@pytest.mark.parametrize(
    ("before", "after", "alpha", "population", "words"),
    [
        ([], [], 0.05, None, "no questions"),
        ([1, 1], [1], 0.05, None, "paired"),
        ([1, 1], [1, 1], 0.05, 1, "benchmark has 1"),
        ([1], [math.nan], 0.05, None, "every score"),
        ([1], [1], 0.5, None, "alpha"),
        ([1], [1], math.nan, None, "alpha"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    before: list[float], after: list[float], alpha: float, population: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        sequential_test(before, after, POINT, alpha, population)


SCORES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=60)
COMPARISONS = st.one_of(
    st.floats(0.001, 0.9).map(Comparison.points), st.floats(0.1, 0.999).map(Comparison.recovery)
)


def judged(
    pairs: list[tuple[float, float]], comparison: Comparison, alpha: float, unseen: int | None
) -> SequentialResult:
    before, after = zip(*pairs, strict=True)
    population = None if unseen is None else len(pairs) + unseen
    return sequential_test(before, after, comparison, alpha, population)


UNSEEN = st.one_of(st.none(), st.integers(0, 100))


@settings(max_examples=60, deadline=None)
@given(PAIRS, COMPARISONS, UNSEEN)
def test_results_make_sense(
    pairs: list[tuple[float, float]], comparison: Comparison, unseen: int | None
) -> None:
    result = judged(pairs, comparison, 0.05, unseen)
    assert 0 <= result.p_inferior <= 1
    most = max(
        point.log10_fail for point in result.e_process
    )  # of every question, there are so few
    assert result.lower is not None
    assert result.upper is not None
    assert comparison.lowest <= result.lower <= result.mean <= result.upper <= comparison.highest
    if result.verdict == "pass":
        assert result.p_inferior <= 0.05 * (1 + 1e-9)
    elif result.verdict == "fail":
        assert most >= math.log10(20) - 1e-9
    else:
        assert result.decided_at is None
        assert unseen != 0
        assert result.p_inferior > 0.05 * (1 - 1e-9)
        assert most < math.log10(20) + 1e-9
        # What is not rejected lies between the bounds, and the threshold was not.
        assert result.lower - 1e-6 <= comparison.threshold <= result.upper + 1e-6


@settings(max_examples=40, deadline=None)
@given(PAIRS, COMPARISONS, UNSEEN)
def test_a_smaller_alpha_is_slower_and_less_sure(
    pairs: list[tuple[float, float]], comparison: Comparison, unseen: int | None
) -> None:
    loose, strict = (judged(pairs, comparison, alpha, unseen) for alpha in (0.2, 0.01))
    assert loose.p_inferior == strict.p_inferior
    if strict.decided_at is not None:
        assert loose.decided_at is not None
        assert loose.decided_at <= strict.decided_at
    for result in (loose, strict):
        assert result.lower is not None
        assert result.upper is not None
    assert strict.lower <= loose.lower + 1e-7  # type: ignore[operator]
    assert strict.upper >= loose.upper - 1e-7  # type: ignore[operator]


@settings(max_examples=40, deadline=None)
@given(PAIRS, UNSEEN)
def test_swapping_the_two_models_mirrors_the_bounds(
    pairs: list[tuple[float, float]], unseen: int | None
) -> None:
    there = judged(pairs, POINT, 0.05, unseen)
    back = judged([(after, before) for before, after in pairs], POINT, 0.05, unseen)
    assert there.lower is not None
    assert back.upper is not None
    assert there.mean == pytest.approx(-back.mean)
    assert there.lower == pytest.approx(-back.upper, abs=1e-6)

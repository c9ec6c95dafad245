"""Half of the stake on the bet that the plan calls best: more power, the same error."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eval_gates.statistics.betting import bets, log_wealth
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.sequential import log_evidence, sequential_test
from eval_gates.statistics.simulation import outcomes, simulate_runs

ALPHA, REPLAYS = 0.05, 2000
TWO_STANDARD_ERRORS = 2 * math.sqrt(ALPHA * (1 - ALPHA) / REPLAYS)

Values = NDArray[np.float64]
BETS = st.floats(0.01, 0.98)


class TestTheBet:
    @pytest.mark.parametrize(
        ("margin", "flips", "size", "bet"),
        [
            (0.05, 0.06, 1.0, 0.56),
            (0.05, 0.15, 1.0, 0.30),
            (0.01, 0.04, 1.0, 0.23),
            (0.01, 0.8, 0.15, 0.55),
            (0.08, 1.0, 0.1, 0.98),
            (0.01, 0.0, 1.0, 0.98),
            (0.001, 0.4, 1.0, 0.01),
        ],
    )
    def test_it_is_kellys(self, margin: float, flips: float, size: float, bet: float) -> None:
        assert planned_bet(Comparison.points(margin), flips, size) == bet

    @pytest.mark.parametrize(
        "comparison", [Comparison.points(0.03), Comparison.recovery(0.95)], ids=["points", "share"]
    )
    def test_in_a_long_run_as_expected_it_earns_more_than_any_even_one(
        self, comparison: Comparison
    ) -> None:
        values = [-comparison.weight, 1.0, 1 - comparison.weight, 0.0]
        drawn = np.random.default_rng(2).choice(values, size=20_000, p=[0.03, 0.03, 0.47, 0.47])
        best = planned_bet(comparison, 0.06, 1.0, 0.5)
        ratio = (drawn - comparison.threshold) / (comparison.threshold - comparison.lowest)

        def earned(bet: float) -> float:
            return float(np.log1p(bet * ratio).sum())

        assert earned(best) >= max(map(earned, bets())) - 1

    @given(st.floats(0.002, 0.4), st.floats(0.001, 0.6), st.floats(0.05, 1))
    def test_more_flips_want_a_smaller_one_and_wider_margins_a_larger_one(
        self, margin: float, flips: float, size: float
    ) -> None:
        bet = planned_bet(Comparison.points(margin), flips, size)
        assert planned_bet(Comparison.points(margin), 1.5 * flips, size) <= bet
        assert planned_bet(Comparison.points(1.2 * margin), flips, size) >= bet


class TestItsPower:
    @pytest.mark.parametrize(
        ("questions", "margin", "flips", "gained"),
        [(164, 0.05, 0.06, 0.08), (1000, 0.02, 0.06, 0.05), (542, 0.03, 0.06, 0.05)],
    )
    def test_more_gates_pass_than_by_an_even_stake(
        self, questions: int, margin: float, flips: float, gained: float
    ) -> None:
        """Nothing is lost, and as many answers flip as expected."""
        comparison = Comparison.points(margin)

        def passed(planned: float | None) -> float:
            found = simulate_runs(
                outcomes(comparison, flips, 1.0, 0.0, 1.0),
                comparison,
                alpha=ALPHA,
                questions=questions,
                population=None,
                runs=REPLAYS,
                blocks=164,
                seed=3,
                planned=planned,
            )
            return float(found.passed.mean())

        assert passed(planned_bet(comparison, flips, 1.0)) >= passed(None) + gained

    @given(st.lists(st.floats(0, 2), min_size=1, max_size=40), st.floats(0.1, 1.9), BETS)
    def test_a_wrong_plan_costs_a_factor_of_two_at_most(
        self, heights: list[float], mean: float, planned: float
    ) -> None:
        even = log_wealth(np.asarray(heights), mean)
        assert (
            log_wealth(np.asarray(heights), mean, None, planned) >= even - math.log(2.001)
        ).all()


def passes(
    values: Values, comparison: Comparison, population: int | None, planned: float | None
) -> float:
    """The share of replays that the gate passes at any question."""
    up, mean = np.maximum(values - comparison.lowest, 0), comparison.threshold - comparison.lowest
    return crossed(log_wealth(up, mean, population, planned))


def crossed(log: Values) -> float:
    return float((log >= -math.log(ALPHA)).any(axis=1).mean())


Draw = Callable[[np.random.Generator], Values]


def of(values: list[float], chances: list[float], questions: int = 200) -> Draw:
    return lambda generator: generator.choice(values, size=(REPLAYS, questions), p=chances)


def shuffled(values: list[float], counts: list[int]) -> Draw:
    """One benchmark in every order."""

    def draw(generator: np.random.Generator) -> Values:
        whole = np.repeat(values, counts)
        return generator.permuted(np.tile(whole, (REPLAYS, 1)), axis=1)

    return draw


POINTS, SHARE = Comparison.points(0.05), Comparison.recovery(0.9)

AT_THE_MARGIN: dict[str, tuple[Comparison, Draw, int | None]] = {
    "losses alone": (POINTS, of([-1.0, 0.0], [0.05, 0.95]), None),
    "losses and gains": (POINTS, of([-1.0, 1.0, 0.0], [0.08, 0.03, 0.89]), None),
    "nearly all flip": (POINTS, of([-1.0, 1.0, 0.0], [0.5, 0.45, 0.05]), None),
    "mostly better, and seldom all is lost": (POINTS, of([-1.0, 0.01], [6 / 101, 95 / 101]), None),
    "large gains seldom, small losses else": (POINTS, of([1.0, -0.06], [1 / 106, 105 / 106]), None),
    "just inside the margin, and lost": (POINTS, of([-1.0, -0.04], [1 / 96, 95 / 96]), None),
    "graded": (POINTS, of([-0.25, 0.05, 0.0], [0.26, 0.3, 0.44]), None),
    "of one benchmark": (POINTS, shuffled([-1.0, 1.0, 0.0], [15, 5, 180]), 200),
    "of one benchmark, losses alone": (POINTS, shuffled([-1.0, 0.0], [10, 190]), 200),
    "recovery": (SHARE, of([-0.9, 1.0, 0.1, 0.0], [0.08, 0.02, 0.52, 0.38]), None),
    "recovery of a strong baseline": (SHARE, of([-0.9, 0.1], [0.1, 0.9]), None),
}


class TestItsError:
    @pytest.mark.parametrize("bet", ["as the plan says", 0.98])
    @pytest.mark.parametrize("name", AT_THE_MARGIN)
    def test_at_the_margin_no_more_pass_than_alpha(self, name: str, bet: float | str) -> None:
        """For any answers and any plan, also the best one."""
        comparison, draw, population = AT_THE_MARGIN[name]
        values = draw(np.random.default_rng(7))
        planned = planned_bet(comparison, 0.1, 1.0, 0.6) if isinstance(bet, str) else bet
        assert float(values.mean()) == pytest.approx(comparison.threshold, abs=0.003)
        assert passes(values, comparison, population, planned) <= ALPHA + TWO_STANDARD_ERRORS

    def test_a_bet_chosen_by_the_answers_errs_more_often(self) -> None:
        """So it is fixed before any is given, and another one is another trial."""
        values = AT_THE_MARGIN["losses and gains"][1](np.random.default_rng(7))
        chosen = np.full((REPLAYS, 200), -np.inf)
        for bet in (0.05, 0.2, 0.5, 0.8, 0.98):
            chosen = np.maximum(chosen, log_wealth(values + 1, 1 - POINTS.size, None, bet))
        assert crossed(chosen) > 1.3 * passes(values, POINTS, None, planned_bet(POINTS, 0.1, 1.0))

    def test_whether_it_fails_does_not_hang_on_the_plan(self) -> None:
        values = AT_THE_MARGIN["nearly all flip"][1](np.random.default_rng(7))[:20]
        even, planned = (log_evidence(values, POINTS, None, bet)[1] for bet in (None, 0.7))
        assert (even == planned).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(0, 100)),
    st.floats(0.01, 0.9),
    BETS,
)
def test_the_bound_agrees_with_the_verdict(
    pairs: list[tuple[float, float]], unseen: int | None, margin: float, planned: float
) -> None:
    before, after = zip(*pairs, strict=True)
    population = None if unseen is None else len(pairs) + unseen
    found = sequential_test(
        before, after, Comparison.points(margin), ALPHA, population, planned=planned
    )
    assert found.lower is not None
    if found.verdict == "open" and population != len(pairs):
        assert found.lower <= -margin + 1e-6
    if found.verdict == "pass" and found.mean > -margin:
        assert found.lower >= -margin - 1e-6


@pytest.mark.parametrize("bet", [0.0, 1.0, -0.3, 4.0, math.nan])
def test_what_is_no_share_is_no_bet(bet: float) -> None:
    with pytest.raises(ValueError, match="planned bet"):
        sequential_test([1.0], [1.0], POINTS, ALPHA, None, planned=bet)

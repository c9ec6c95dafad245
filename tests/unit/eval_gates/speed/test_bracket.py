"""The search for the highest rate at which limits are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.speed.bracket import AGAIN, NARROW, Bracket, Reach

REACH = Reach(start=3.0, lowest=0.01, highest=1000.0)
ROUNDS = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.booleans()), max_size=30)


def bracket(rounds: list[tuple[float, bool]], share: float = 0.5) -> Bracket:
    found = Bracket(share)
    for rate, kept in rounds:
        found.add(rate, kept)
    return found


def search(goodput: float, reach: Reach = REACH) -> tuple[Bracket, list[float]]:
    """Of a server that keeps its limits up to its goodput, and never above."""
    found, rates = Bracket(0.5), []
    while len(rates) < 60:
        rate, needed = found.next_rate(reach)
        if not needed:
            break
        rates.append(rate)
        found.add(rate, rate <= goodput)
    return found, rates


@given(ROUNDS)
def test_the_fitted_share_never_rises_and_keeps_the_mean(rounds: list[tuple[float, bool]]) -> None:
    shares = bracket(rounds).shares()
    assert list(shares) == sorted({rate for rate, _ in rounds})
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    fitted = sum(shares[rate] for rate, _ in rounds)
    assert fitted == pytest.approx(sum(kept for _, kept in rounds))


def test_shares_that_rise_are_pooled() -> None:
    shares = bracket([(1, True), (2, False), (3, True), (3, True), (5, False)]).shares()
    assert shares == pytest.approx({1: 1, 2: 2 / 3, 3: 2 / 3, 5: 0})


@given(st.floats(min_value=0.02, max_value=900))
def test_without_noise_it_ends_around_the_goodput(goodput: float) -> None:
    found, rates = search(goodput)
    low, high = found.ends()
    assert low is not None
    assert high is not None
    assert low <= goodput < high <= low * NARROW
    assert len(rates) < 30
    assert all(rates.count(end) == AGAIN for end in (low, high))


def test_it_doubles_then_halves_the_bracket() -> None:
    _, rates = search(10.0)
    assert rates[:5] == [3, 6, 12, 8.485, 10.09]


@pytest.mark.parametrize(("goodput", "end"), [(1e9, 1000.0), (1e-9, 0.01)])
def test_it_goes_no_further_than_can_be_measured(goodput: float, end: float) -> None:
    found, rates = search(goodput)
    assert rates.count(end) == AGAIN
    assert min(rates) >= 0.01
    assert max(rates) <= 1000
    assert found.estimate() == pytest.approx(end)


def test_one_round_of_bad_luck_is_looked_at_again() -> None:
    found = Bracket(0.5)
    for _ in range(25):
        rate, needed = found.next_rate(REACH)
        if not needed:
            break
        found.add(rate, rate <= 10 and not (rate == 6 and 6 not in found.shares()))
    estimate = found.estimate()
    assert estimate == pytest.approx(10, rel=0.1)


def test_nothing_is_known_before_the_first_round() -> None:
    assert Bracket(0.5).estimate() is None
    assert Bracket(0.5).next_rate(Reach(0.001, 0.01, 10)) == (0.01, True)

"""The evidence under ratios: how often it errs, on noise that it was not tuned to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eval_gates.speed.symmetry import log_evidence, log_signs, log_t, lower_bound, upper_bound

RUNS, BLOCKS = 6_000, 20
Noise = Callable[[np.random.Generator], NDArray[np.float64]]


def drifting(chance: np.random.Generator) -> NDArray[np.float64]:
    """Two loads a block on a machine whose speed wanders, in an order drawn by chance."""
    wander = chance.normal(0, 0.01, (RUNS, 2 * BLOCKS)).cumsum(axis=1)
    loads = wander + chance.normal(0, 0.02, wander.shape)
    order = chance.choice([-1.0, 1.0], (RUNS, BLOCKS))
    return np.asarray(order * (loads[:, 1::2] - loads[:, ::2]))


def growing(chance: np.random.Generator) -> NDArray[np.float64]:
    """Noise ten times as large in the second half."""
    scale = np.where(np.arange(BLOCKS) < BLOCKS // 2, 0.01, 0.1)
    return np.asarray(chance.normal(0, 1, (RUNS, BLOCKS)) * scale)


# All have the centre 0: of the skewed ones, which stop the t test alone, that is the median.
NOISE: dict[str, Noise] = {
    "normal": lambda c: c.normal(0, 0.03, (RUNS, BLOCKS)),
    "heavy tails": lambda c: c.standard_t(3, (RUNS, BLOCKS)),
    "no variance": lambda c: c.standard_cauchy((RUNS, BLOCKS)),
    "even": lambda c: c.uniform(-1, 1, (RUNS, BLOCKS)),
    "two values": lambda c: c.choice([-1.0, 1.0], (RUNS, BLOCKS)),
    "drift": drifting,
    "growing": growing,
    "rare stalls": lambda c: (
        c.normal(0, 0.02, (RUNS, BLOCKS)) - 0.1 * (c.random((RUNS, BLOCKS)) < 0.1)
    ),
    "skewed down": lambda c: math.log(2) - c.exponential(1, (RUNS, BLOCKS)),
    "skewed up": lambda c: c.exponential(1, (RUNS, BLOCKS)) - math.log(2),
    "very skewed down": lambda c: 1 - c.lognormal(0, 2, (RUNS, BLOCKS)),
    "very skewed up": lambda c: c.lognormal(0, 2, (RUNS, BLOCKS)) - 1,
}


@pytest.mark.parametrize("name", NOISE)
def test_it_errs_at_most_as_often_as_it_says(name: str) -> None:
    """Looked at after each block, in either direction, at two error rates."""
    values = NOISE[name](np.random.default_rng(3))
    for evidence in log_evidence(values):
        for alpha in (0.05, 0.01):
            wrong = float((evidence[:, -1] >= -math.log(alpha)).mean())
            assert wrong <= alpha, (name, alpha)


def test_the_t_test_alone_would_err_more_often() -> None:
    """Which is why the signs must agree."""
    chance = np.random.default_rng(3)
    alone = []
    for name in ("very skewed down", "even"):
        up, _ = log_t(NOISE[name](chance))
        alone.append(float((up.max(axis=1) >= -math.log(0.01)).mean()))
    assert alone[0] > 0.02
    assert alone[1] > 0.008


@pytest.mark.parametrize(("from_block_to_block", "most", "least"), [(0.3, 0.06, 0), (0.6, 1, 0.1)])
def test_blocks_that_depend_on_each_other_are_not_covered(
    from_block_to_block: float, most: float, least: float
) -> None:
    """What docs/speed.md says of one side's speed wandering over many blocks."""
    noise = np.random.default_rng(9).normal(0, 1, (RUNS, BLOCKS))
    for block in range(1, BLOCKS):
        own = math.sqrt(1 - from_block_to_block**2) * noise[:, block]
        noise[:, block] = from_block_to_block * noise[:, block - 1] + own
    wrong = float((log_evidence(noise)[0][:, -1] >= -math.log(0.05)).mean())
    assert least <= wrong <= most


@pytest.mark.parametrize(
    ("gain", "blocks", "share"), [(0.02, 20, 0.45), (0.05, 8, 0.99), (0.1, 5.5, 0.99)]
)
def test_what_is_better_passes(gain: float, blocks: float, share: float) -> None:
    """With 2 % of noise a load: the mean number of blocks, and how many pass within 20."""
    noise = np.random.default_rng(4).normal(0, 0.02 * math.sqrt(2), (2_000, BLOCKS))
    up, _ = log_evidence(math.log1p(gain) + noise)
    crossed = up >= -math.log(0.05)
    needed = np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, BLOCKS)
    assert crossed.any(axis=1).mean() >= share
    assert needed.mean() <= blocks


VALUES = st.lists(st.floats(-10, 10).map(lambda v: round(v, 6)), min_size=1, max_size=25)


@given(VALUES)
def test_both_directions_are_mirrors(values: list[float]) -> None:
    logs = np.array(values)
    up, down = log_evidence(logs)
    mirrored_up, mirrored_down = log_evidence(-logs)
    np.testing.assert_allclose(up, mirrored_down, atol=1e-9)
    np.testing.assert_allclose(down, mirrored_up, atol=1e-9)


@given(VALUES, st.floats(0.001, 1000))
def test_units_do_not_matter(values: list[float], scale: float) -> None:
    logs = np.array(values)
    for one, other in zip(log_evidence(logs), log_evidence(scale * logs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@given(VALUES)
def test_evidence_is_finite_never_falls_and_is_bounded(values: list[float]) -> None:
    """Whatever the values: n signs cannot say more than 2^n."""
    logs = np.array(values)
    limit = math.log(2) * np.arange(1, logs.size + 1) + 1e-9
    for evidence in log_evidence(logs):
        assert np.isfinite(evidence).all()
        assert (evidence >= 0).all()
        assert (np.diff(evidence) >= -1e-12).all()
        assert (evidence <= limit).all()


def test_nothing_moves_nothing() -> None:
    """Blocks that are all equal to the minimum say nothing, however many."""
    up, down = log_evidence(np.zeros(50))
    assert up.max() <= math.log(2)
    assert down.max() <= math.log(2)


def test_four_blocks_cannot_decide_at_5_percent() -> None:
    """However far apart the two sides are."""
    up, _ = log_evidence(np.full(8, 3.0))
    assert [bool(each) for each in up >= -math.log(0.05)] == [False] * 4 + [True] * 4


@settings(max_examples=50)
@given(VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_bounds_surround_what_is_not_rejected(values: list[float], alpha: float) -> None:
    """The lower bound is below the mean and rejected itself; a stricter one lies further out."""
    logs = np.array(values)
    lower, upper = lower_bound(logs, alpha), upper_bound(logs, alpha)
    assert lower <= logs.mean() + 1e-9
    assert upper >= logs.mean() - 1e-9
    assert lower_bound(logs, alpha / 2) <= lower + 1e-9
    if math.isfinite(lower):
        up, _ = log_evidence(logs - (lower - 1e-9))
        assert up[-1] >= -math.log(alpha) - 1e-6


def test_bounds_hold_at_every_block_at_once() -> None:
    """The true centre is below the lower bound, after whichever block, in at most alpha of runs."""
    chance = np.random.default_rng(5)
    runs, alpha = 100, 0.2
    missed = 0
    for _ in range(runs):
        values = chance.standard_t(3, 12) + 7.0
        missed += any(lower_bound(values[:n], alpha) > 7.0 for n in (6, 9, 12))
    assert missed / runs <= alpha


def test_too_few_values_bound_nothing() -> None:
    assert lower_bound(np.array([1.0, 1.0]), 0.05) == -math.inf
    assert lower_bound(np.empty(0), 0.05) == -math.inf
    assert upper_bound(np.array([1.0]), 0.05) == math.inf


def test_signs_are_worth_one_on_average() -> None:
    """Exactly: over all 2^n ways to flip the signs of given sizes."""
    sizes = np.array([0.3, 2.0, 0.0, 1.0, 5.0, 0.7])
    signs = np.array(np.meshgrid(*[[-1, 1]] * sizes.size)).reshape(sizes.size, -1).T
    wealth = np.exp(log_signs(sizes * signs)[:, -1])
    assert wealth.mean() == pytest.approx(1.0)

"""The chances of a gate of answers.

A variant changes a share `flips` of the scores by plus or minus `size`, and loses `loss` on
average. At each look the distance of Gaffke's bound from the mean is a typical sample's. Looks
share values, so they are correlated normals. `benchmarks/policy_power.py` compares with replays.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from eval_gates.statistics.assay_sensitivity import check_sensitivity
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Look, planned_looks
from recipes.schema import Family

_MAX_COUNTED_FLIPS = 30.0
_DRAWS = 4_000  # so that a chance is known to 0.8 points


@dataclass(frozen=True)
class Chances:
    """Chances of both verdicts; the rest is undecided."""

    passes: float
    fails: float


@dataclass(frozen=True)
class GatePower:
    """Chances that a gate lets a variant in."""

    gate: str  # of a suite, or of a speed gate
    tier: str
    family: Family | None  # None: the same for all families
    alpha: float
    units: int | None  # questions, clusters or blocks; None if known only once they are read
    passes: float | None  # of a variant that loses nothing; None where `units` is
    usual: float | None  # of the policy's usual good variant; None without one
    words: str  # all this as a sentence


def chances(
    comparison: Comparison,
    alpha: float,
    values: int,
    *,
    flips: float,
    loss: float,
    size: float = 1.0,
    baseline: float = 0.5,
    looks: Sequence[Look] = (),
) -> Chances:
    """Return the chances of a gate of answers.

    `alpha` is over all looks, the usual ones if none are given. `values` counts questions, or
    clusters. `loss` is the true drop of the mean, and `size` a score's change. A recovery depends
    on `baseline`, the mean score.
    """
    from eval_gates.statistics.bound import counted_bounds

    outcomes = _outcomes(comparison, flips, loss, size, baseline)
    looks = looks or planned_looks(values, comparison.margin)
    is_counted = comparison.kind == "points" and size == 1
    if is_counted and values * max(flips, loss) <= _MAX_COUNTED_FLIPS:
        return _draw_chances(comparison, alpha, looks, outcomes[0][1], outcomes[2][1])
    mean = sum(value * chance for value, chance in outcomes)
    variance = sum((value - mean) ** 2 * chance for value, chance in outcomes)
    above = list[float]()
    below = list[float]()
    for look in looks:
        bounds = counted_bounds(
            [value for value, _ in outcomes],
            [look.n * chance for _, chance in outcomes],
            alpha * look.share,
            lowest=comparison.lowest,
            highest=comparison.highest,
        )
        above.append(bounds.lower - comparison.threshold)
        below.append(comparison.threshold - bounds.upper)
    counts = [look.n for look in looks]
    return Chances(_any_above(above, variance, counts), _any_above(below, variance, counts))


@lru_cache(maxsize=1_000)
def chance_of_sensitivity(
    comparison: Comparison, alpha: float, values: int, *, guessing: float, baseline: float
) -> float:
    """Return the chance that right-or-wrong answers show a score above guessing and margin.

    `guessing` and `baseline` are mean scores, of guesses and of a model that answers `values`
    questions. The fewest right answers that show it are searched.
    """
    from scipy.stats import binom

    def is_shown(right: int) -> bool:
        scores = [1.0] * right + [0.0] * (values - right)
        return check_sensitivity("guessing", scores, guessing, comparison).p_insensitive <= alpha

    least = bisect_left(range(values + 1), True, key=is_shown)
    return float(binom.sf(least - 1, values, baseline))


def _draw_chances(
    comparison: Comparison, alpha: float, looks: Sequence[Look], lost: float, gained: float
) -> Chances:
    """Return the chances by drawing counts: few flips are not normal.

    `lost` and `gained` are chances of a question.
    """
    import numpy as np

    chance = np.random.default_rng(0)
    counts = np.zeros((_DRAWS, 2), dtype=int)
    is_open = np.ones(_DRAWS, dtype=bool)
    ended = {"pass": 0, "fail": 0}
    before = 0
    for look in looks:
        new = look.n - before
        counts += chance.multinomial(new, [lost, gained, 1 - lost - gained], _DRAWS)[:, :2]
        before = look.n
        chances = [
            _decide_counts(comparison, alpha * look.share, look.n, int(down), int(up))
            for down, up in np.unique(counts[is_open], axis=0)
        ]
        _, which = np.unique(counts[is_open], axis=0, return_inverse=True)
        states = np.array(chances)[which.ravel()]
        for state in ended:
            ended[state] += int((states == state).sum())
        is_open[np.flatnonzero(is_open)[states != "open"]] = False
    least = 0.5 / _DRAWS  # what no draw showed is rare, and not impossible
    passes, fails = (
        min(1 - least, max(least, count / _DRAWS)) if lost + gained else count / _DRAWS
        for count in ended.values()
    )
    return Chances(passes, fails)


@lru_cache(maxsize=10_000)
def _decide_counts(comparison: Comparison, level: float, n: int, lost: int, gained: int) -> str:
    """Return what a look at these counts decides."""
    import numpy as np

    from eval_gates.statistics.bound import log_chance_below

    counts = np.array([lost + 1, n - lost - gained, gained], dtype=float)
    points = np.array([-1.0, 0.0, 1.0])
    inside = log_chance_below(points, counts, comparison.threshold)
    if inside < math.log(level):
        return "pass"
    counts = np.array([lost, n - lost - gained, gained + 1], dtype=float)
    outside = log_chance_below(-points, counts, -comparison.threshold)
    return "fail" if outside < math.log(level) else "open"


def _outcomes(
    comparison: Comparison, flips: float, loss: float, size: float, baseline: float
) -> list[tuple[float, float]]:
    """Return values of a question with their chances."""
    moves = max(flips, loss / size)
    lost = (moves + loss / size) / 2
    gained = (moves - loss / size) / 2
    if comparison.kind == "points":
        return [(-size, lost), (0.0, 1 - lost - gained), (size, gained)]
    share = comparison.size
    if size == 1:
        lost = min(lost, baseline)
        gained = min(gained, 1 - baseline)
        kept = baseline - lost
        return [(-share, lost), (1 - share, kept), (0.0, 1 - lost - gained - kept), (1.0, gained)]
    rest = (1 - share) * baseline
    return [(rest - size, lost), (rest, 1 - lost - gained), (rest + size, gained)]


def _any_above(room: Sequence[float], variance: float, counts: Sequence[int]) -> float:
    """Return the chance that a running mean is above its limit at any look.

    `room` is the expected distance from the limit, `counts` n, by look.
    """
    if variance == 0:
        return float(max(room) > 0)
    limits = [-space / math.sqrt(variance / n) for space, n in zip(room, counts, strict=True)]
    if len(limits) == 1:
        return 1 - NormalDist().cdf(limits[0])
    import numpy as np
    from scipy.stats import multivariate_normal

    n = np.array(counts, dtype=float)
    correlations = np.sqrt(np.minimum.outer(n, n) / np.maximum.outer(n, n))
    none = multivariate_normal.cdf(limits, np.zeros(n.size), correlations, rng=0)
    return float(min(1.0, max(0.0, 1 - none)))


def one_look(
    comparison: Comparison, alpha: float, sessions: int, flips: float, loss: float
) -> Chances:
    """Return the chances of a gate with one look at the end."""
    looks = (Look(sessions, 1.0),)
    return chances(comparison, alpha, sessions, flips=flips, loss=loss, looks=looks)


def format_chance(chance: float | None) -> str:
    """Format a chance; 100 % and 0 % are exact. None: a suite is not counted yet."""
    if chance is None:
        return "a share that is known once the questions are laid out"
    if 0 < chance < 1e-6:
        return "practically none"
    if 0 < chance < 0.005:
        return "< 1 %"
    return f"{100 * chance:.0f} %" if chance < 0.995 or chance == 1 else "> 99 %"

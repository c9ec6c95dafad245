"""What a claim on speed can show, before anything is measured: replays of its rule.

How noisy a machine is and how far the variant is above the limit are not known then, so these are
chances under stated assumptions: the noise of a load, or the share of rounds that keep the limits;
and that nothing drifts: of a steady server a look for drift costs less than a block on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_gates.speed.rule_from_config import Rule
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOISE = 0.02
"""Coefficient of variation of a load's output tokens/s that is assumed; 1 to 3 % are usual."""
NOISE_OF_LIVES = 0.02
"""The same between lives of a server, where a pair of lives is one value; 1 to 2 % are usual."""
AHEAD = (0.02, 0.05, 0.1)
"""How much better than the minimum a variant is taken to be."""
KEPT = (0.8, 0.9, 0.99)
"""Shares of rounds that a server is taken to keep its limits in; those above the claimed one."""

_REPLAYS, _FEWEST_REPLAYS, _SEED = 1_000, 50, 20261122
_MOST_VALUES = 300_000  # of one truth: fewer replays of a rule with a large cap


@dataclass(frozen=True)
class PassProbability:
    """What to expect of a server that is so much better than the claim."""

    truth: float
    """Its ratio, or the share of rounds that keep the limits."""
    passes: float
    """Chance of a pass."""
    units: float
    """Mean number of blocks or rounds that are measured."""


@dataclass(frozen=True)
class SpeedGatePower:
    """What one claim can show."""

    fewest: int | None
    """Blocks or rounds after which the clearest case passes; None where the cap forbids it."""
    chances: tuple[PassProbability, ...]


def speed_power(rule: Rule) -> SpeedGatePower:
    """Replay a rule, at the error rate that it has."""
    import numpy as np

    chance = np.random.default_rng(_SEED)
    shape = (max(_FEWEST_REPLAYS, min(_REPLAYS, _MOST_VALUES // rule.cap)), rule.cap)
    chances = []
    if isinstance(rule, ThroughputRatioRule):
        of_one = NOISE
        if rule.server_mode == "interleaved":
            of_one = math.hypot(NOISE / math.sqrt(rule.loads_per_server_run), NOISE_OF_LIVES)
        noise = chance.normal(0, of_one * math.sqrt(2), shape)
        for ahead in AHEAD:
            margins = noise + math.log1p(ahead)
            chances.append(_chance(rule, margins, rule.min_ratio * (1 + ahead)))
    else:
        drawn = chance.random(shape)
        for kept in KEPT:
            if kept > rule.slo_attainment:
                chances.append(_chance(rule, kept - drawn, kept))
    clearest = np.full((1, rule.cap), np.inf)
    crossed = rule.log_evidence(clearest)[0][0] >= -math.log(rule.level)
    crossed[: rule.fewest - 1] = False
    fewest = int(crossed.argmax()) + 1 if crossed.any() else None
    return SpeedGatePower(fewest, tuple(chances))


def _chance(
    rule: ThroughputRatioRule | SloRule, margins: NDArray[np.float64], truth: float
) -> PassProbability:
    needed = -math.log(rule.level)
    passing, failing = (each >= needed for each in rule.log_evidence(margins))
    for each in (passing, failing):
        each[:, : rule.fewest - 1] = False
    up, down = _first(passing), _first(failing)
    return PassProbability(
        truth=truth,
        passes=float((up < down).mean()),
        units=float(_at_most(up, down, rule.cap).mean()),
    )


def _first(crossed: NDArray[np.bool_]) -> NDArray[np.int64]:
    import numpy as np

    never = crossed.shape[1] + 1
    return np.asarray(np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, never))


def _at_most(up: NDArray[np.int64], down: NDArray[np.int64], cap: int) -> NDArray[np.int64]:
    import numpy as np

    return np.minimum(np.minimum(up, down), cap)

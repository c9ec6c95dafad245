"""Power of a performance gate before the measurement, by simulation of its rule.

It assumes no drift, the noise of a load and of a start, or the share of rounds that meet the
limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_gates.speed.gate_rule import ClaimRule
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOISE = 0.02
"""Assumed coefficient of variation of a load's output tokens/s; 1 to 3 % are usual."""
RESTART_NOISE = 0.02
"""The same between server runs; 1 to 2 % are usual."""
GAINS = (0.02, 0.05, 0.1)
"""Assumed gains of a variant over the minimum."""
ATTAINMENTS = (0.8, 0.9, 0.99)
"""Assumed shares of rounds that meet the limits; only those above the required share are used."""

_SIMULATIONS, _MIN_SIMULATIONS, _SEED = 1_000, 50, 20261122
_MAX_VALUES = 300_000  # of one truth: fewer replays of a rule with a large cap


@dataclass(frozen=True)
class PassProbability:
    """Expected outcome for an assumed true effect."""

    truth: float
    """The true ratio, or the true share of rounds that meet the limits."""
    passes: float
    """Chance of a pass."""
    units: float
    """Mean number of blocks or rounds."""


@dataclass(frozen=True)
class SpeedGatePower:
    """Power of one gate."""

    min_units: int | None
    """Blocks or rounds after which the clearest case passes; None if the cap is lower."""
    chances: tuple[PassProbability, ...]


def speed_power(rule: ClaimRule) -> SpeedGatePower:
    """Simulate a rule at its error rate."""
    import numpy as np

    chance = np.random.default_rng(_SEED)
    shape = (max(_MIN_SIMULATIONS, min(_SIMULATIONS, _MAX_VALUES // rule.cap)), rule.cap)
    chances = []
    if isinstance(rule, ThroughputRatioRule):
        of_one = NOISE
        if rule.server_mode == "interleaved":
            of_one = math.hypot(NOISE / math.sqrt(rule.loads_per_server_run), RESTART_NOISE)
        elif rule.server_mode == "swapped":
            of_one = NOISE / math.sqrt(rule.blocks_per_unit)
        noise = chance.normal(0, of_one * math.sqrt(2), shape)
        if rule.restart_allowance:  # the same starts are in all values
            of_starts = RESTART_NOISE * math.sqrt(2 / rule.starts_per_side)
            noise += chance.normal(0, of_starts, (len(noise), 1))
        for ahead in GAINS:
            margins = noise + math.log1p(ahead)
            chances.append(_chance(rule, margins, rule.min_ratio * (1 + ahead)))
    else:
        drawn = chance.random(shape)
        for kept in ATTAINMENTS:
            if kept > rule.slo_attainment:
                chances.append(_chance(rule, kept - drawn, kept))
    clearest = np.full((1, rule.cap), np.inf)
    crossed = rule.log_evidence(clearest)[0][0] >= -math.log(rule.level)
    crossed[: rule.min_units - 1] = False
    min_units = int(crossed.argmax()) + 1 if crossed.any() else None
    return SpeedGatePower(min_units, tuple(chances))


def _chance(
    rule: ThroughputRatioRule | SloRule, margins: NDArray[np.float64], truth: float
) -> PassProbability:
    needed = -math.log(rule.level)
    passing, failing = (each >= needed for each in rule.log_evidence(margins))
    for each in (passing, failing):
        each[:, : rule.min_units - 1] = False
    up, down = _first(passing), _first(failing)
    return PassProbability(
        truth=truth,
        passes=float((up < down).mean()),
        units=float(_count_units(up, down, rule.cap).mean()),
    )


def _first(crossed: NDArray[np.bool_]) -> NDArray[np.int64]:
    import numpy as np

    never = crossed.shape[1] + 1
    return np.asarray(np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, never))


def _count_units(up: NDArray[np.int64], down: NDArray[np.int64], cap: int) -> NDArray[np.int64]:
    import numpy as np

    return np.minimum(np.minimum(up, down), cap)

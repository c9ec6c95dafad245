"""Chance that a speed gate passes, before any work: by Student's t, with the noise of blocks.

`benchmarks/speed_power.py` compares with replays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eval_gates.speed.load_run import LENGTH_FACTOR
from eval_gates.speed.report import describe_gate
from eval_gates.speed.rules import SpeedRule
from eval_gates.statistics.paired_t import chance_above
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.preflight.chances import Chances, GatePower, format_chance
from pipeline.preflight.power import RATIO
from recipes.measured_ratios import find_measured
from recipes.policy import Policy
from recipes.schema import ServingProfile

ROOM = (1.1, 1.25)
"""Limits over times: if nothing changes, and of a usual good variant."""
START_SECONDS = 120.0
"""Assumed start time of a server that was not measured here."""
LOAD_NOISE = 0.029
START_NOISE = 0.019
"""Assumed standard deviations of ln(output tokens/s): of a load, and of a start.

Ratios inside one start of an H100 varied by 4.1 %; that of starts is not measured. A ratio of fresh
starts then varies by 4.9 %. A percentile of latency varies by twice as much as a load.
"""


@dataclass(frozen=True)
class BlockNoise:
    """Standard deviation of a block's value, measured on this machine."""

    deviation: float
    blocks: int


def speed_power(
    policy: Policy,
    profile: ServingProfile,
    level: float,
    start_seconds: float | None = None,
    measured: BlockNoise | None = None,
    families: Sequence[str] = (),
) -> tuple[GatePower, ...]:
    """Compute each speed gate's chances; raises as `find_speed_gates`.

    `level` is that of one variant's gate. `measured` is the noise of ratios on this machine, with
    fresh starts. Ratios that were measured before are told for the families.
    """
    start = START_SECONDS if start_seconds is None else start_seconds
    powers = []
    speed_gates = policy.gates_on(profile.accelerator)
    for speed_gate, planned in zip(
        speed_gates, find_speed_gates(policy, profile, alpha=level), strict=True
    ):
        rule = planned.rule
        workload = planned.workload
        of, truths = ("ratio", RATIO) if rule.compares else ("limit over time", ROOM)
        own = measured if rule.compares and rule.starts == "fresh" else None
        deviation = own.deviation if own is not None else assumed_noise(rule)
        source = f"measured here in {own.blocks} blocks" if own is not None else "assumed"
        both = [speed_chance(rule, truth, deviation) for truth in truths]
        is_supporting = speed_gate.tier == "supporting"
        let_in = [1 - chances.fails if is_supporting else chances.passes for chances in both]
        loads = rule.blocks * len(rule.sides)
        starts = loads if rule.starts == "fresh" else len(rule.sides)
        if shares := bool(speed_gate.main) and rule.starts == "fresh":
            starts = 0
        is_steady = workload.arrivals.concurrency is not None
        around = LENGTH_FACTOR * workload.seconds
        seconds = around if is_steady else workload.seconds + 2 * workload.warmup_seconds
        chance = ", ".join(
            f"{format_chance(chances)} at {truth:g}"
            for chances, truth in zip(let_in, truths, strict=True)
        )
        described = describe_gate(rule, speed_gate.workload, speed_gate.at, workload.load)
        verb = "does not fail" if is_supporting else "passes"
        takes = f"the starts of {speed_gate.main}" if shares else f"{starts} starts of servers"
        words = (
            f"speed {speed_gate.name}, {speed_gate.tier}: {described}; "
            f"{rule.blocks} {rule.unit}; {verb} by true {of}: {chance}, "
            f"if a block varies by {100 * deviation:.1f} % ({source}); "
            f"{takes}, about {(loads * seconds + starts * start) / 60:.0f} minutes"
        )
        if rule.compares and not shares and rule.starts == "fresh":
            words += describe_measured(profile.name, families)
        powers.append(
            GatePower(
                gate=speed_gate.name,
                tier=speed_gate.tier,
                family=None,
                alpha=rule.alpha,
                units=rule.blocks,
                passes=let_in[0],
                usual=let_in[1],
                words=words,
            )
        )
    return tuple(powers)


def describe_measured(profile: str, families: Sequence[str]) -> str:
    """Return what was measured before for these formats on the profile's GPU."""
    measured = find_measured(profile)
    if measured is None:
        return ""
    shown = [measured.words(family) for family in dict.fromkeys(families)]
    known = "; ".join(filter(None, shown))
    return f"; measured before ({measured.what}), by concurrent requests: {known}" if known else ""


def assumed_noise(rule: SpeedRule) -> float:
    """Return the standard deviation of a block's value that is assumed."""
    start = START_NOISE if rule.starts == "fresh" else 0.0
    return math.hypot(LOAD_NOISE, start) * (math.sqrt(2) if rule.compares else 2)


def speed_chance(rule: SpeedRule, truth: float, deviation: float | None = None) -> Chances:
    """Return chances at a true ratio, or limit over time; `deviation` is a block's."""
    noise = assumed_noise(rule) if deviation is None else deviation
    away = math.log(truth / rule.min_ratio)
    up, down = (chance_above(s * away, 0.0, noise, rule.blocks, rule.alpha) for s in (1, -1))
    return Chances(up, down)

"""Chance that a speed gate passes, before anything is measured: Student's t of normal values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.speed.gate_rule import ClaimRule, apply_gate_rate, build_rule
from eval_gates.speed.load_run import LENGTH_FACTOR
from eval_gates.speed.report import describe_gate
from eval_gates.speed.rules import RatioRule
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.statistics.paired_t import chance_above
from pipeline.core.errors import UsageError
from pipeline.plan.power import format_chance
from pipeline.plan.speed_plan import find_claims
from recipes.catalog import load_workload
from recipes.engine_arguments import count_gpus
from recipes.policy import Policy
from recipes.schema import ServingProfile
from recipes.speed import SpeedGate, SpeedPolicy
from recipes.workload import AnyWorkload

START_SECONDS = 120.0
"""Taken for the start of a server while none was started here: 55 to 130 s on a CPU are usual."""
NOISE = 0.02
"""Assumed standard deviation of ln(output tokens/s) of a load, and of a start; 1 to 3 % are usual.
A percentile of latency is taken to vary by twice as much."""
RATIOS = (1.0, 1.05, 1.1)
ROOMS = (1.05, 1.1, 1.25)
"""Assumed true ratios, and limits over times."""


@dataclass(frozen=True)
class SpeedChance:
    """Chances of the two verdicts for a true ratio, or a true limit over its time."""

    truth: float
    passes: float
    fails: float


@dataclass(frozen=True)
class SpeedPower:
    """Chances of one speed gate."""

    gate: str
    tier: str
    claim: str  # in words
    alpha: float  # level of the gate
    blocks: int  # or loads, for limits
    starts: int  # of servers
    # With warm-up and server starts; None where the workload is a profile's.
    minutes: float | None
    gpu_minutes: float | None  # of a variant; None without GPUs
    chances: tuple[SpeedChance, ...]
    words: str  # all this as a sentence

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def claim_powers(
    policy: Policy,
    tried: int,
    profile: ServingProfile | None = None,
    level: float | None = None,
    start_seconds: float | None = None,
) -> tuple[SpeedPower, ...]:
    """Return the power of each speed gate.

    Args:
        policy: of the gates.
        tried: number of variants.
        profile: its workloads, accelerator and starts count. With None a ratio has the first of its
            minimums, and servers stay up.
        level: of each gate; None for that of a first attempt.
        start_seconds: measured start of a server; None: unknown, so START_SECONDS.

    Raises:
        UsageError: with a profile, as `find_claims`.
    """
    speed = policy.speed
    if speed is None:
        return ()
    alpha = gate_level(policy.alpha, policy.attempts, tried) if level is None else level
    start = START_SECONDS if start_seconds is None else start_seconds
    if profile is not None:
        planned = {each.gate: each for each in find_claims(policy, profile, alpha=alpha)}
        return tuple(
            _power_of(claim, planned[claim.name].rule, planned[claim.name].workload, start, profile)
            for claim in speed.claims_on(profile.accelerator)
        )
    some = next(iter(speed.ratio.min_ratio)) if speed.ratio is not None else None
    return tuple(
        _power_of(claim, build_rule(claim, alpha, some), _carried(claim, speed), start)
        for claim in speed.claims
    )


def chances(rule: ClaimRule) -> tuple[SpeedChance, ...]:
    """Return a gate's chances at its error rate."""
    noise, truths = NOISE * math.sqrt(2), RATIOS
    if not isinstance(rule, RatioRule):
        noise, truths = 2 * NOISE, ROOMS
    if rule.starts == "fresh":
        noise *= math.sqrt(2)
    found = []
    for truth in truths:
        away = math.log(truth / rule.threshold)
        passes, fails = (
            chance_above(sign * away, 0.0, noise, rule.blocks, rule.alpha) for sign in (1, -1)
        )
        found.append(SpeedChance(truth, passes, fails))
    return tuple(found)


def _power_of(
    claim: SpeedGate,
    rule: ClaimRule,
    workload: AnyWorkload | None,
    start: float,
    profile: ServingProfile | None = None,
) -> SpeedPower:
    loads = rule.blocks * (2 if rule.compares else 1)
    starts = loads if rule.starts == "fresh" else 1 + rule.compares
    minutes = gpu_minutes = None
    if workload is not None:
        minutes = (loads * _seconds_of(workload) + starts * start * (profile is not None)) / 60
        if profile is not None and profile.accelerator == "cuda":
            gpu_minutes = count_gpus(profile.engine_arguments) * minutes
    found = chances(rule)
    words = describe_gate(rule, claim.workload, claim.at)
    return SpeedPower(
        gate=claim.name,
        tier=claim.tier,
        claim=words,
        alpha=rule.alpha,
        blocks=rule.blocks,
        starts=starts,
        minutes=minutes,
        gpu_minutes=gpu_minutes,
        chances=found,
        words=f"speed {claim.name}, {claim.tier}: {words}; {rule.blocks} {rule.unit}; "
        + _outcome(claim, rule, found),
    )


def _outcome(claim: SpeedGate, rule: ClaimRule, found: tuple[SpeedChance, ...]) -> str:
    of = "ratio" if isinstance(rule, RatioRule) else "limit over time"
    is_critical = claim.tier == "critical"
    each = [
        f"{format_chance(chance.passes if is_critical else chance.fails)} at {chance.truth:g}"
        for chance in found
    ]
    return f"{'passes' if is_critical else 'fails'} by true {of}: {', '.join(each)}"


def _carried(claim: SpeedGate, speed: SpeedPolicy) -> AnyWorkload | None:
    """Return the workload of the policy or package; None: it may be a profile's."""
    try:
        workload = load_workload(claim.workload, speed)[0]
    except UsageError:
        return None
    return apply_gate_rate(claim, workload)


def _seconds_of(workload: AnyWorkload) -> float:
    """Return the minimum duration of one load, with warm-up and end."""
    if workload.arrivals.concurrency is not None:
        return LENGTH_FACTOR * workload.seconds
    return workload.seconds + 2 * workload.warmup_seconds

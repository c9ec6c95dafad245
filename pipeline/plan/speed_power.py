"""Power of a policy's speed gates, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.speed.gate_rule import ClaimRule, apply_gate_rate, build_rule
from eval_gates.speed.load_run import LENGTH_FACTOR
from eval_gates.speed.power import PassProbability, speed_power
from eval_gates.speed.randomization import SIDES
from eval_gates.speed.report import describe_gate
from eval_gates.speed.sequential_rule import warm_up_units
from eval_gates.statistics.multiplicity import gate_level
from pipeline.core.errors import UsageError
from pipeline.plan.speed_plan import find_claims
from recipes.catalog import load_workload
from recipes.engine_arguments import count_gpus
from recipes.policy import Policy
from recipes.schema import ServingProfile
from recipes.speed import SpeedGate, SpeedPolicy
from recipes.workload import AnyWorkload

START_SECONDS = 120.0
"""Taken for the start of a server while none was started here: 55 to 130 s on a CPU are usual."""


@dataclass(frozen=True)
class PlannedGatePower:
    """One claim of a policy's `speed`."""

    gate: str
    tier: str
    claim: str  # in words
    unit: str  # blocks, pairs of server runs or rounds
    # At which it is decided: that of the attempt and its number of variants.
    alpha: float
    most: int  # of these units
    fewest: int | None  # that could decide it; None: `most` is less
    # Maximum, with warm-up and server starts; None where the workload is a profile's.
    minutes: float | None
    chances: tuple[PassProbability, ...]
    # Server starts for `most` units: of servers that are interleaved, or of two on GPUs.
    starts: int = 0
    gpu_minutes: float | None = None  # of a variant; None without GPUs, or where minutes are
    server_mode: str = "concurrent"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def claim_powers(
    policy: Policy,
    tried: int,
    profile: ServingProfile | None = None,
    level: float | None = None,
    start_seconds: float | None = None,
) -> tuple[PlannedGatePower, ...]:
    """Return the power of each speed gate.

    Args:
        policy: of the gates.
        tried: number of variants.
        profile: its workloads, accelerator and server mode count. With None a ratio has the first
            of its minimums and no restart allowance.
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
        laid_out = {each.gate: each for each in find_claims(policy, profile, alpha=alpha)}
        return tuple(
            _power_of(
                claim, laid_out[claim.name].rule, laid_out[claim.name].workload, start, profile
            )
            for claim in speed.claims_on(profile.accelerator)
        )
    some = next(iter(speed.ratio.min_ratio)) if speed.ratio is not None else None
    return tuple(
        _power_of(claim, build_rule(claim, alpha, some), _carried(claim, speed), start)
        for claim in speed.claims
    )


def _power_of(
    claim: SpeedGate,
    rule: ClaimRule,
    workload: AnyWorkload | None,
    start: float,
    profile: ServingProfile | None = None,
) -> PlannedGatePower:
    power = speed_power(rule)
    schedule = rule.schedule(SIDES if rule.compares else SIDES[1:])
    on_gpus = profile is not None and profile.accelerator == "cuda"
    starts = len(schedule.sides) * rule.cap if schedule.loads else 2 * on_gpus
    seconds, sets = None, 1
    if schedule.swap:  # two loads at the same time, and two starts
        starts, sets = 4, 2
    if workload is not None:
        unit_seconds = schedule.unit * _seconds_of(workload) / sets
        units = rule.cap + warm_up_units(rule, unit_seconds)
        if schedule.swap:
            units = sets * schedule.swap
        seconds = units * unit_seconds + starts * start / sets
    return PlannedGatePower(
        gate=claim.name,
        tier=claim.tier,
        claim=describe_gate(rule, claim.workload, claim.at),
        unit=rule.unit,
        alpha=rule.alpha,
        most=rule.cap,
        fewest=power.min_units,
        minutes=None if seconds is None else seconds / 60,
        chances=power.chances,
        starts=starts,
        gpu_minutes=sets * count_gpus(profile.engine_arguments) * seconds / 60
        if profile is not None and on_gpus and seconds is not None
        else None,
        server_mode=rule.server_mode,
    )


def check_claims_decidable(policy: Policy, powers: Sequence[PlannedGatePower]) -> None:
    """Refuse blocking speed gates that could not pass the fastest server.

    Raises:
        UsageError: there is such a gate.
    """
    for power in powers:
        if power.fewest is None and power.tier == "critical":
            kind, _, number = power.gate.partition(".")
            key = f"slo[{number}]" if kind == "slo" else kind
            cap = "blocks" if kind == "ratio" else "rounds"
            raise UsageError(
                f"{power.gate}: {power.most} {power.unit} cannot decide it at the error rate "
                f"{power.alpha:.2g}, for any result",
                where=f"policy {policy.name}, key speed.{key}.{cap}",
                hint=f"allow more {cap}, or claim it with a larger alpha",
            )


def _carried(claim: SpeedGate, speed: SpeedPolicy) -> AnyWorkload | None:
    """Return the workload of the policy or package; None: it may be a profile's."""
    try:
        workload = load_workload(claim.workload, speed)[0]
    except UsageError:
        return None
    return apply_gate_rate(claim, workload)


def _seconds_of(workload: AnyWorkload) -> float:
    """Return the minimum duration of one load, with warm-up and end.

    Long answers extend it: a load at a fixed concurrency by its first and last wave, a round of a
    rate until it lasts ten of them.
    """
    if workload.arrivals.concurrency is not None:
        return LENGTH_FACTOR * workload.seconds
    return workload.seconds + 2 * workload.warmup_seconds

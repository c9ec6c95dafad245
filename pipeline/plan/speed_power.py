"""What a policy's claims on speed can show, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.speed.power import Chance, speed_power
from eval_gates.speed.report import claim_in_words
from eval_gates.speed.rule import rule_of
from eval_gates.statistics.multiplicity import level_of
from pipeline.core.errors import UsageError
from recipes.catalog import load_workload
from recipes.policy import Policy
from recipes.schema import AcceleratorName, ServingProfile
from recipes.speed import Speed


@dataclass(frozen=True)
class ClaimPower:
    """One claim of a policy's `speed`."""

    gate: str
    tier: str
    claim: str  # in words
    unit: str  # blocks or rounds
    # Error rate at which it is decided: the trial's share of the policy's, over the variants.
    alpha: float
    most: int  # of these units
    fewest: int | None  # that could decide it; None: `most` is less
    minutes: float | None  # that the most take; None where the workload is a profile's
    chances: tuple[Chance, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def claim_powers(
    policy: Policy,
    tried: int,
    accelerator: AcceleratorName | None = None,
    profile: ServingProfile | None = None,
) -> list[ClaimPower]:
    """What each claim can show in the first trial; none where the policy claims nothing.

    Args:
        policy: whose claims they are.
        tried: number of variants.
        accelerator: of a ratio's minimum; None: any that it has, for they are decided alike.
        profile: whose workloads are looked at first; None: the carried ones alone.
    """
    if policy.speed is None:
        return []
    alpha = level_of(policy.alpha, tried, 1)
    found = []
    for claim in policy.speed.claims:
        if accelerator is None and policy.speed.ratio is not None:
            accelerator = next(iter(policy.speed.ratio.minimum))
        rule = rule_of(claim.kind, claim.rule(accelerator, alpha, None))
        power = speed_power(rule)
        seconds = _seconds_of(claim.workload, policy.speed, profile)
        sides = 1 if getattr(rule, "compare", "baseline") == "absolute" else 2
        found.append(
            ClaimPower(
                gate=claim.name,
                tier=claim.tier,
                claim=claim_in_words(rule, claim.workload, claim.at),
                unit=rule.unit,
                alpha=alpha,
                most=rule.cap,
                fewest=power.fewest,
                minutes=sides * rule.cap * seconds / 60 if seconds is not None else None,
                chances=power.chances,
            )
        )
    return found


def check_claims_decidable(policy: Policy, powers: Sequence[ClaimPower]) -> None:
    """Refuse claims that block and could not pass the fastest server.

    Raises:
        UsageError: there is such a claim.
    """
    for power in powers:
        if power.fewest is None and power.tier == "critical":
            kind, _, number = power.gate.partition(".")
            key = f"slo[{number}]" if kind == "slo" else kind
            raise UsageError(
                f"{power.gate}: {power.most} {power.unit} cannot decide it at the error rate "
                f"{power.alpha:.2g}, whatever they show",
                where=f"policy {policy.name}, key speed.{key}.{power.unit}",
                cure=f"allow more {power.unit}, or claim it with a larger alpha",
            )


def _seconds_of(workload: str, speed: Speed, profile: ServingProfile | None) -> float | None:
    """How long one load of it lasts at least, warm-up and end included; None: not known here."""
    try:
        found, _ = load_workload(workload, speed, profile)
    except UsageError:
        return None
    if found.arrivals.concurrency is not None:
        return found.seconds
    return found.seconds + 2 * found.warmup_seconds

"""Plans the stages that measure a policy's speed gates.

The same for two servers of this run, and for two external endpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_gates.speed.load_run import (
    CHARACTERS_PER_REQUEST,
    MAX_CHARACTERS,
    MAX_LOADS,
    MAX_REQUESTS,
    MIN_LOAD_WAVES,
)
from eval_gates.speed.rules import (
    SpeedRule,
    apply_gate_rate,
    build_rule,
    max_percentile,
    min_requests,
)
from pipeline.core.digest import digest_file, digest_json
from pipeline.core.errors import UsageError
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.serving.served_model import ServedModel
from pipeline.stages.attempts import NOTHING, AttemptLedger, Counted, Remeasured, Trial
from pipeline.stages.block import BlockParameters
from pipeline.stages.speed import ROLE, SPEED, SpeedParameters, SpeedRuntime
from recipes.catalog import load_workload
from recipes.policy import Policy
from recipes.schema import AcceleratorName, ServingProfile
from recipes.speed import SloGate, SpeedGate, SpeedPolicy, ThroughputRatioGate
from recipes.traffic_file import check_workload
from recipes.workload import AnyWorkload, FileWorkload, without_place


@dataclass(frozen=True)
class SpeedGatePlan:
    """One speed gate of a policy, with all that measuring it needs."""

    gate: str  # `ratio.chat`, `slo.0`
    name: str  # of the workload
    workload: AnyWorkload
    where: str  # the workload stands, for messages
    rule: SpeedRule  # that decides


def find_claims(
    policy: Policy,
    profile: ServingProfile | None,
    *,
    alpha: float | None = None,
    max_length: int | None = None,
) -> list[SpeedGatePlan]:
    """Return the policy's speed gates, each with a valid workload.

    Args:
        policy: may have none.
        profile: whose workloads take precedence; None for endpoints.
        alpha: error rate at which measuring stops; None for the policy's own.
        max_length: maximum tokens of a prompt and its answer; None: unknown.

    Raises:
        UsageError: a workload is missing or invalid; the message names file and key.
    """
    speed, level = policy.speed, policy.alpha if alpha is None else alpha
    if speed is None:
        return []
    accelerator = profile.accelerator if profile is not None else None
    claims = [
        _find_claim(speed, claim, profile, accelerator, level)
        for claim in speed.claims_on(accelerator)
    ]
    for claim in claims:
        _check_load(claim, max_length)
    return claims


def check_own_workloads(policy: Policy) -> None:
    """Check that the policy's gates on its own workloads can be measured, with any engine.

    Raises:
        UsageError: one cannot; the message names file and key.
    """
    speed = policy.speed
    for claim in speed.claims if speed is not None else ():
        if speed is not None and claim.workload in speed.workloads:
            some = (
                next(iter(claim.gate.min_ratio))
                if isinstance(claim.gate, ThroughputRatioGate)
                else None
            )
            _check_load(_find_claim(speed, claim, None, some, policy.alpha), None)


def _check_load(claim: SpeedGatePlan, max_length: int | None) -> None:
    check_workload(claim.workload, claim.where, max_length)
    _check_size(claim.workload, claim.where)
    _check_evidence(claim)


def _find_workload(
    speed: SpeedPolicy, claim: SpeedGate, profile: ServingProfile | None
) -> tuple[AnyWorkload, str]:
    try:
        return load_workload(claim.workload, speed, profile)
    except UsageError as error:
        key = f"policy key {ROLE}{claim.name}, workload {claim.workload}"
        raise UsageError(error.message, where=key, hint=error.hint) from error


def _find_claim(
    speed: SpeedPolicy,
    claim: SpeedGate,
    profile: ServingProfile | None,
    accelerator: AcceleratorName | None,
    alpha: float,
) -> SpeedGatePlan:
    found, where = _find_workload(speed, claim, profile)
    workload = apply_gate_rate(claim, found)
    _check_arrivals(claim, workload, where)
    _check_answers(claim, workload, where)
    rule = build_rule(claim, alpha, accelerator, workload, profile)
    _check_percentiles(claim.gate, workload, where)
    return SpeedGatePlan(claim.name, claim.workload, workload, where, rule)


def _check_arrivals(claim: SpeedGate, workload: AnyWorkload, where: str) -> None:
    at_once = workload.arrivals.concurrency is not None
    if claim.kind == "ratio" and not at_once:
        raise UsageError(
            f"a ratio of throughput needs several requests in flight; '{claim.workload}' has "
            f"{workload.arrivals.words}",
            where=f"{where}, key arrivals",
            hint="write 'arrivals: {concurrency: 64}', or make it a claim of 'slo'",
        )
    if claim.kind == "slo" and at_once:
        raise UsageError(
            f"'{claim.workload}' has {workload.arrivals.words}, and a claim on latencies is about "
            "requests that come whether earlier ones are answered or not",
            where=f"policy key {ROLE}{claim.name}",
            hint="add 'rate: 12' there",
        )


def _check_answers(claim: SpeedGate, workload: AnyWorkload, where: str) -> None:
    limits = {} if isinstance(claim.gate, ThroughputRatioGate) else claim.gate.limits or {}
    of_tokens = next((name for name in limits if name.startswith("tpot")), None)
    if of_tokens is not None and getattr(workload, "output_tokens", None) == 1:
        raise UsageError(
            f"{claim.name} limits {of_tokens}, the time of each token after the first, and answers "
            "have one token",
            where=f"{where}, key output_tokens",
            hint="give at least 2, or limit ttft_ms alone",
        )


def _check_percentiles(
    gate: ThroughputRatioGate | SloGate, workload: AnyWorkload, where: str
) -> None:
    """Check that rounds have enough requests for their percentiles."""
    rate = workload.arrivals.rate
    if not isinstance(gate, SloGate) or rate is None:
        return
    percentile = max_percentile(gate.limits)
    if percentile is None:
        return
    needed = min_requests(percentile)
    expected = needed + 4 * math.sqrt(needed)  # hardly any Poisson count is 4 deviations below
    if rate * workload.seconds < expected:
        raise UsageError(
            f"P{percentile} needs {needed} requests a round, and rounds of "
            f"{workload.seconds:g} seconds at {rate:g} requests/s have {rate * workload.seconds:g} "
            "on average",
            where=f"{where}, key seconds",
            hint=f"give at least {math.ceil(expected / rate)} seconds, or a limit on a smaller "
            "percentile",
        )


def _send_seconds(workload: AnyWorkload) -> float:
    return workload.seconds + 2 * workload.warmup_seconds


def _check_size(workload: AnyWorkload, where: str) -> None:
    """Check that a load has at most the maximum number of requests."""
    arrivals = workload.arrivals
    requests = 0.0
    if arrivals.rate is not None:
        requests = _send_seconds(workload) * arrivals.rate
    elif arrivals.concurrency is not None:
        requests = MIN_LOAD_WAVES * max(arrivals.concurrency, getattr(workload, "prefixes", 1))
    if requests > MAX_REQUESTS:
        raise UsageError(
            f"a load of it has {requests:,.0f} requests, and {MAX_REQUESTS:,} are the most",
            where=f"{where}, key arrivals",
            hint="ask for fewer at a time, or give fewer 'seconds' and 'warmup_seconds'",
        )


def _check_evidence(claim: SpeedGatePlan) -> None:
    """Check that all loads fit into the evidence, so that they can be judged.

    The number of requests at a fixed concurrency is unknown before the measurement.
    """
    rule, rate = claim.rule, claim.workload.arrivals.rate
    loads = 2 * rule.blocks * len(rule.sides)  # with as many repeats
    known = rate if rule.kind == "slo" and rate is not None else 0.0
    requests = loads * known * _send_seconds(claim.workload)
    most = MAX_CHARACTERS // CHARACTERS_PER_REQUEST
    if loads > MAX_LOADS or requests > most:
        raise UsageError(
            f"{claim.gate} may come to {loads:,} loads and {requests:,.0f} requests, and "
            f"{MAX_LOADS:,} and {most:,} are the most that can be judged",
            where=f"policy key {ROLE}{claim.gate}",
            hint=f"ask for fewer {'blocks' if rule.kind == 'ratio' else 'starts'}, or give the "
            "workload fewer 'seconds'",
        )


def asked_of_speed(policy: Policy, profile: ServingProfile | None) -> dict[str, str]:
    """Return what critical speed gates depend on; any change needs another measurement.

    So even another number of blocks is another chance of a lucky pass, and another attempt
    (attempts.py). Empty if the policy has no such gate.
    """
    tiers = policy.speed.tiers if policy.speed is not None else {}
    return {
        ROLE + claim.gate: digest_json(
            [claim.name, dump_workload(claim)[0], claim.rule.model_dump()]
        )
        for claim in find_claims(policy, profile)
        if tiers[claim.gate] == "critical"
    }


@dataclass(frozen=True)
class SpeedSide:
    """One side of a comparison, for its speed.

    Args:
        variant: name of its recipe.
        identity: the model and its serving arguments; part of the keys.
        screen: the stage of its first answer.
    """

    variant: str
    identity: ServedModel
    screen: StageSpec


@dataclass(frozen=True)
class Sides:
    """Both sides of a comparison, and the load generator.

    Args:
        baseline: reference of the comparison.
        candidate: the variant.
        tokenizer: folder, of both.
        environment: identity of the load generator's.
        machine: that they are measured on, or the kind of node.
        other_weights: stages of existing weights, for which both sides are measured again.
    """

    baseline: SpeedSide
    candidate: SpeedSide
    tokenizer: Path
    environment: str
    machine: str
    other_weights: tuple[str, ...] = ()

    def stage(
        self, claim: SpeedGatePlan, number: int = 1, screen: SpeedRule | None = None
    ) -> StageSpec:
        """Return the stage that measures the gate.

        Args:
            claim: of the policy.
            number: of the measurement.
            screen: the rule of a tuning's screening; None for the gate's rule.
        """
        rule = screen or claim.rule
        baseline = {"baseline": self.baseline} if rule.compares else {}
        sides = {"candidate": self.candidate, **baseline}
        workload, file = dump_workload(claim)
        return SPEED.spec(
            self.candidate.variant,
            SpeedParameters(
                name=claim.name,
                workload=workload,
                rule=rule,
                sides={name: side.identity for name, side in sides.items()},
                environment=self.environment,
                machine=self.machine,
                other_weights=list(self.other_weights),
                measurement=number,
            ),
            {name: side.screen for name, side in sides.items()},
            SpeedRuntime(
                tokenizer=str(self.tokenizer), environment="serve", claim=claim.gate, file=file
            ),
            Path(self.candidate.screen.store),
        )

    def measurement(self, claim: SpeedGatePlan, trial: Trial, number: int) -> BlockParameters:
        """Return the gate's measurement by blocks, which is one for all variants of the trial."""
        return BlockParameters(
            name=claim.name,
            workload=dump_workload(claim)[0],
            rule=claim.rule,
            baseline=self.baseline.identity,
            trial=trial,
            environment=self.environment,
            machine=self.machine,
            other_weights=list(self.other_weights),
            measurement=number,
        )


def speed_stages(
    sides: Sides,
    trial: Trial,
    claims: Sequence[SpeedGatePlan],
    run: str = "",
    remeasured: Remeasured = NOTHING,
) -> dict[str, StageSpec]:
    """Return the stages of the speed gates by role, each with its measurement number.

    Args:
        sides: of the comparison.
        trial: of the candidate.
        claims: the policy's gates at the trial's level.
        run: id of the run.
        remeasured: gates to measure again although they are finished.
    """
    store = Store(Path(sides.candidate.screen.store))
    ledger, stages = AttemptLedger(store), {}
    for claim in claims:

        def is_over(number: int, claim: SpeedGatePlan = claim) -> bool:
            spec = sides.stage(claim, number)
            return store.find_current(spec.stage, spec.key) is not None

        number = ledger.next_number(trial, claim.gate, is_over, remeasured)
        spec = sides.stage(claim, number)
        counted = Counted(trial=trial, gate=claim.gate, run=run)
        runtime = {**spec.runtime, "counted": counted.model_dump(mode="json")}
        if claim.rule.starts == "fresh":
            measurement = sides.measurement(claim, trial, number).model_dump(mode="json")
            # A tuning's trial has one variant, whichever candidate it is.
            name = sides.candidate.variant
            arm = name if name in trial.variants else min(trial.variants)
            runtime |= {"measurement": measurement, "arm": arm}
        stages[ROLE + claim.gate] = spec.model_copy(update={"runtime": runtime})
    return stages


def dump_workload(claim: SpeedGatePlan) -> tuple[dict[str, Any], str | None]:
    """Return the workload as parameters with its file's digest, and the file.

    Raises:
        UsageError: the file is invalid.
    """
    workload = claim.workload
    if not isinstance(workload, FileWorkload):
        return workload.model_dump(), None
    return without_place(pin_file(workload)), str(workload.path)


def pin_file(workload: AnyWorkload) -> AnyWorkload:
    """Return the workload with the digest of its file, if it has one that was read."""
    if not isinstance(workload, FileWorkload):
        return workload
    return workload.model_copy(update={"sha256": digest_file(workload.path)})


def pin_files(policy: Policy, accelerator: AcceleratorName | None) -> Policy:
    """Return the policy whose workloads, as used by its gates, have their files' digests.

    Args:
        policy: its gates are valid (`find_claims`).
        accelerator: of the verdict; None for endpoints.
    """
    claimed = {claim.workload for claim in policy.claims_on(accelerator)}
    if policy.speed is None or not claimed:
        return policy
    own = policy.speed.workloads
    pinned = {name: pin_file(each) if name in claimed else each for name, each in own.items()}
    speed = policy.speed.model_copy(update={"workloads": pinned})
    return policy.model_copy(update={"speed": speed})

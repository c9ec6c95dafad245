"""Lays out the stages that measure a policy's claims on speed.

The same for two servers of this run, and for two endpoints that someone else serves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.served_model import ServedModel
from artifacts.stages.speed import SPEED, SpeedParameters, SpeedRuntime
from eval_gates.speed.claimed_rule import (
    Measuring,
    arrive_as_claimed,
    compares,
    expected_for,
    highest_percentile,
    lasts,
    lay_out_rule,
)
from eval_gates.speed.draw import SIDES
from eval_gates.speed.load import (
    LETTERS_OF_A_REQUEST,
    MAX_LETTERS,
    MAX_LOADS,
    MAX_REQUESTS,
    WAVES,
)
from eval_gates.speed.rule import rule_of
from eval_gates.speed.trust import fewest_requests
from pipeline.core.digest import digest_file, digest_json
from pipeline.core.errors import UsageError
from pipeline.core.stage_record import StageSpec
from recipes.catalog import load_workload
from recipes.policy import Policy
from recipes.schema import AcceleratorName, ServingProfile
from recipes.speed import ClaimKind, GoodputGate, RatioGate, SloGate, Speed, SpeedClaim
from recipes.traffic_file import check_workload, read_traffic
from recipes.workload import AnyWorkload, FileWorkload, TraceWorkload, without_place

ROLE = "speed."  # of the stages' roles, before the gate's name


@dataclass(frozen=True)
class Claim:
    """One claim of a policy's `speed`, with all that measuring it needs."""

    gate: str  # `ratio.chat`, `slo.0`, `goodput`
    name: str  # of the workload
    kind: ClaimKind | Literal["race"]  # which rule decides
    workload: AnyWorkload
    where: str  # the workload stands, for messages
    rule: Mapping[str, Any]  # that decides, as plain data
    compares: bool  # whether the baseline is measured too


def find_claims(
    policy: Policy,
    profile: ServingProfile | None,
    *,
    alpha: float | None = None,
    max_length: int | None = None,
) -> list[Claim]:
    """The claims of the policy, each with a workload that can be asked.

    Args:
        policy: whose `speed` it is; it may have none.
        profile: whose workloads come first; None for endpoints that someone else serves.
        alpha: error rate at which measuring stops; the policy's own when None.
        max_length: tokens that a prompt and its answer may have together; None: not known yet.

    Raises:
        UsageError: a workload is not there, or cannot be asked; file and key are named.
    """
    speed, level = policy.speed, policy.alpha if alpha is None else alpha
    if speed is None:
        return []
    accelerator = profile.accelerator if profile is not None else None
    claimed = speed.claims_on(accelerator)
    measuring = _measuring_of(speed, claimed, profile)
    claims = [
        _find_claim(speed, claim, profile, measuring, accelerator, level) for claim in claimed
    ]
    for claim in claims:
        if "acceptance" in claim.rule and profile is not None and profile.speculative is None:
            raise UsageError(
                f"{claim.gate} claims what speculative decoding accepts, and variants are served "
                "without it",
                where=f"policy key {ROLE}{claim.gate}, profile {profile.name}",
                cure="give the profile the key 'speculative', or leave acceptance_at_least out",
            )
        _check_load(claim, max_length)
    return claims


def check_own_workloads(policy: Policy) -> None:
    """See that the policy's claims on workloads of its own can be measured, whatever serves.

    Raises:
        UsageError: one cannot; file and key are named.
    """
    speed = policy.speed
    for claim in speed.claims if speed is not None else ():
        if speed is not None and claim.workload in speed.workloads:
            some = next(iter(claim.gate.minimum)) if isinstance(claim.gate, RatioGate) else None
            measuring = _measuring_of(speed, [claim], None)
            _check_load(_find_claim(speed, claim, None, measuring, some, policy.alpha), None)


def _check_load(claim: Claim, max_length: int | None) -> None:
    check_workload(claim.workload, claim.where, max_length)
    _check_size(claim.workload, claim.where)
    _check_evidence(claim)


def measuring_of(policy: Policy, profile: ServingProfile | None) -> Measuring | None:
    """What the rules of the policy's claims follow from beside itself; None where it has no claim.

    Raises:
        UsageError: a workload is not there, or its file is wrong.
    """
    claims = policy.claims_on(profile.accelerator if profile is not None else None)
    if policy.speed is None or not claims:
        return None
    measuring = _measuring_of(policy.speed, claims, profile)
    pinned = {name: pin_file(each) for name, each in measuring.workloads.items()}
    return measuring.model_copy(update={"workloads": pinned})


def _measuring_of(
    speed: Speed, claims: Sequence[SpeedClaim], profile: ServingProfile | None
) -> Measuring:
    found = {each.workload: _find_workload(speed, each, profile) for each in claims}
    goodputs = {each.workload for each in claims if each.kind == "goodput"}
    return Measuring(
        lives=profile.speed_lives if profile is not None else None,
        life_spread=profile.life_spread if profile is not None else 0.0,
        workloads={n: each for n, (each, _) in found.items() if n not in speed.workloads},
        requests={
            name: read_traffic(each, where).requests
            for name, (each, where) in found.items()
            if name in goodputs and isinstance(each, TraceWorkload)
        },
    )


def _find_workload(
    speed: Speed, claim: SpeedClaim, profile: ServingProfile | None
) -> tuple[AnyWorkload, str]:
    try:
        return load_workload(claim.workload, speed, profile)
    except UsageError as error:
        key = f"policy key {ROLE}{claim.name}, workload {claim.workload}"
        raise UsageError(error.what, where=key, cure=error.cure) from error


def _find_claim(
    speed: Speed,
    claim: SpeedClaim,
    profile: ServingProfile | None,
    measuring: Measuring,
    accelerator: AcceleratorName | None,
    alpha: float,
) -> Claim:
    found, where = _find_workload(speed, claim, profile)
    workload = arrive_as_claimed(claim, found)
    _check_arrivals(claim, workload, where)
    _check_answers(claim, workload, where)
    rule = lay_out_rule(claim, workload, measuring, accelerator, alpha)
    if isinstance(claim.gate, GoodputGate):
        _check_reach(claim.gate, workload, where, rule["lowest"], rule["highest"])
    else:
        _check_percentiles(claim.gate, workload, where)
    return Claim(
        claim.name, claim.workload, claim.kind, workload, where, rule, compares=compares(claim)
    )


def _check_arrivals(claim: SpeedClaim, workload: AnyWorkload, where: str) -> None:
    at_once = workload.arrivals.concurrency is not None
    if claim.kind == "ratio" and not at_once:
        raise UsageError(
            f"a ratio of throughput needs requests at once; '{claim.workload}' has "
            f"{workload.arrivals.words}",
            where=f"{where}, key arrivals",
            cure="write 'arrivals: {concurrency: 64}', or make it a claim of 'slo'",
        )
    if claim.kind == "slo" and at_once:
        raise UsageError(
            f"'{claim.workload}' has {workload.arrivals.words}, and a claim on latencies is about "
            "requests that come whether earlier ones are answered or not",
            where=f"policy key {ROLE}{claim.name}",
            cure="add 'rate: 12' there",
        )


def _check_answers(claim: SpeedClaim, workload: AnyWorkload, where: str) -> None:
    limits = {} if isinstance(claim.gate, RatioGate) else claim.gate.limits or {}
    of_tokens = next((name for name in limits if name.startswith("tpot")), None)
    if of_tokens is not None and getattr(workload, "output_tokens", None) == 1:
        raise UsageError(
            f"{claim.name} limits {of_tokens}, the time of each token after the first, and answers "
            "have one token",
            where=f"{where}, key output_tokens",
            cure="give at least 2, or limit ttft_ms alone",
        )


def _check_percentiles(gate: RatioGate | SloGate, workload: AnyWorkload, where: str) -> None:
    """Rounds of so few requests a percentile is of none: they would be refused one by one."""
    rate = workload.arrivals.rate
    if not isinstance(gate, SloGate) or rate is None:
        return
    percentile = highest_percentile(gate.limits)
    if percentile is None:
        return
    needed, expected = fewest_requests(percentile), expected_for(percentile)
    if rate * workload.seconds < expected:
        raise UsageError(
            f"P{percentile} needs {needed} requests a round, and rounds of "
            f"{workload.seconds:g} seconds at {rate:g} requests/s have {rate * workload.seconds:g} "
            "on average",
            where=f"{where}, key seconds",
            cure=f"give at least {math.ceil(expected / rate)} seconds, or a limit on a smaller "
            "percentile",
        )


def _check_size(workload: AnyWorkload, where: str) -> None:
    """A load has so many requests at most: of a longer one, only its beginning would be sent."""
    arrivals = workload.arrivals
    requests, key = 0.0, "arrivals"
    if arrivals.rate is not None:
        requests = lasts(workload) * arrivals.rate
    elif arrivals.concurrency is not None:
        requests = WAVES * max(arrivals.concurrency, getattr(workload, "prefixes", 1))
    elif isinstance(workload, TraceWorkload):
        times, key = read_traffic(workload, where).times, "file"
        requests = sum(each <= lasts(workload) for each in times)
        ends = workload.warmup_seconds + workload.seconds
        if times[-1] < ends:
            raise UsageError(
                f"the trace ends after {times[-1]:g} seconds, and a load of it lasts {ends:g} and "
                "more",
                where=f"{where}, key seconds",
                cure="give fewer 'seconds' and 'warmup_seconds', or a longer trace",
            )
    if isinstance(workload, TraceWorkload) and not arrivals.trace:
        there = read_traffic(workload, where).requests
        if there < requests:
            raise UsageError(
                f"the trace has {there:,} requests, and a load of it {requests:,.0f}",
                where=f"{where}, key file",
                cure="name a longer trace, or ask for fewer requests at a time",
            )
    if requests > MAX_REQUESTS:
        raise UsageError(
            f"a load of it has {requests:,.0f} requests, and {MAX_REQUESTS:,} are the most",
            where=f"{where}, key {key}",
            cure="ask for fewer at a time, or give fewer 'seconds' and 'warmup_seconds'",
        )


def _check_evidence(claim: Claim) -> None:
    """All loads must fit into the evidence that is read: else hours of them could not be judged.

    Of requests at once nobody knows how many there will be, and of a search at which rates.
    """
    if claim.kind == "race":
        return
    rule, rate = rule_of(claim.kind, claim.rule), claim.workload.arrivals.rate
    lives = rule.spread_over(SIDES if claim.compares else SIDES[1:])
    loads = lives.unit * (rule.cap + rule.warm_up)
    known = rate if claim.kind == "slo" and rate is not None else 0.0
    requests = loads * known * lasts(claim.workload)
    most = MAX_LETTERS // LETTERS_OF_A_REQUEST
    if loads > MAX_LOADS or requests > most:
        raise UsageError(
            f"{claim.gate} may come to {loads:,} loads and {requests:,.0f} requests, and "
            f"{MAX_LOADS:,} and {most:,} are the most that can be judged",
            where=f"policy key {ROLE}{claim.gate}",
            cure=f"allow fewer {'blocks' if claim.kind == 'ratio' else 'rounds'}, or give the "
            "workload fewer 'seconds'",
        )


def asked_of_speed(policy: Policy, profile: ServingProfile | None) -> dict[str, str]:
    """What critical claims on speed ask and are decided by: changed, it is measured anew.

    So even a larger cap is another chance of a lucky pass, and another trial (trials.py): blocks
    of an earlier measurement are not continued. Empty where the policy has no such claim.
    """
    tiers = policy.speed.tiers if policy.speed is not None else {}
    return {
        ROLE + claim.gate: digest_json([claim.name, dump_workload(claim)[0], dict(claim.rule)])
        for claim in find_claims(policy, profile)
        if tiers[claim.gate] == "critical"
    }


def _check_reach(
    gate: GoodputGate, workload: AnyWorkload, where: str, lowest: float, highest: float
) -> None:
    """Two rates of a test must be possible, in requests/s; raises UsageError where none is left."""
    apart = max(gate.at_least_ratio, 1 / gate.at_least_ratio)  # the two rates of a test
    if lowest * apart >= highest:
        raise UsageError(
            f"P{highest_percentile(gate.limits or {})} needs {lowest:.3g} requests/s in rounds of "
            f"{workload.seconds:g} seconds, {highest:.3g} requests/s are the most that can be "
            f"sent, and the sides' rates are {apart:g} times apart",
            where=f"{where}, key seconds",
            cure="give other 'seconds', a longer trace, or a limit on a smaller percentile",
        )


@dataclass(frozen=True)
class Side:
    """One side of a comparison as it is served, as far as its speed goes.

    Args:
        variant: name of its recipe.
        identity: all that says which model answers, and how it is served; part of the keys.
        coherence: the stage in which it first answers.
    """

    variant: str
    identity: ServedModel
    coherence: StageSpec


def speed_stages(
    claims: Iterable[Claim],
    baseline: Side,
    candidate: Side,
    *,
    tokenizer: Path,
    environment: str,
    machine: str,
    beside: Sequence[str] = (),
) -> dict[str, StageSpec]:
    """The stages that measure the claims, by role.

    Args:
        claims: of the policy.
        baseline: what the candidate is compared with.
        candidate: the variant.
        tokenizer: folder, of both.
        environment: identity of the load generator's.
        machine: that they are measured on, or the kind of node.
        beside: distinguishes this measuring from others of the same tuples.
    """
    stages = {}
    for claim in claims:
        sides = {"candidate": candidate, **({"baseline": baseline} if claim.compares else {})}
        workload, file = dump_workload(claim)
        stages[ROLE + claim.gate] = SPEED.spec(
            candidate.variant,
            SpeedParameters(
                claim=claim.kind,
                name=claim.name,
                workload=workload,
                rule=dict(claim.rule),
                sides={name: side.identity for name, side in sides.items()},
                environment=environment,
                machine=machine,
                beside=list(beside),
            ),
            {name: side.coherence for name, side in sides.items()},
            SpeedRuntime(
                tokenizer=str(tokenizer), environment="serve", claim=claim.gate, file=file
            ),
            Path(candidate.coherence.store),
        )
    return stages


def dump_workload(claim: Claim) -> tuple[dict[str, Any], str | None]:
    """The workload as parameters, which say what a file holds, and where the file lies.

    Raises:
        UsageError: the file is wrong.
    """
    workload = claim.workload
    if not isinstance(workload, FileWorkload):
        return workload.model_dump(), None
    times = read_traffic(workload, claim.where).times if workload.arrivals.trace else ()
    plain = without_place(pin_file(workload))
    return {**plain, **({"times": list(times)} if times else {})}, str(workload.path)


def pin_file(workload: AnyWorkload) -> AnyWorkload:
    """The workload with the digest of its file, where it has one that was read."""
    if not isinstance(workload, FileWorkload):
        return workload
    return workload.model_copy(update={"sha256": digest_file(workload.path)})


def pin_files(policy: Policy, accelerator: AcceleratorName | None) -> Policy:
    """The policy whose own workloads, as far as claims name them there, say what is in their files.

    Args:
        policy: whose claims can be asked (`find_claims`).
        accelerator: that it judges on; None of endpoints.
    """
    claimed = {claim.workload for claim in policy.claims_on(accelerator)}
    if policy.speed is None or not claimed:
        return policy
    own = policy.speed.workloads
    pinned = {name: pin_file(each) if name in claimed else each for name, each in own.items()}
    speed = policy.speed.model_copy(update={"workloads": pinned})
    return policy.model_copy(update={"speed": speed})

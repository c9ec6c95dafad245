"""A policy's speed gates with valid workloads and rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from prepare.digest import digest_file
from prepare.errors import UsageError
from recipes.accelerator import Accelerator
from recipes.catalog import load_workload
from recipes.policy import Policy
from recipes.schema import ServingProfile
from recipes.speed import SloGate, SpeedGate
from recipes.traffic_file import check_workload
from recipes.workload import MAX_SECONDS, AnyWorkload, FileWorkload, without_place

MEDIAN = 50  # the smallest percentile of a limit


@dataclass(frozen=True)
class SpeedGatePlan:
    """A speed gate, and what measuring it needs."""

    gate: str  # `ratio.chat`, `slo.0`
    name: str  # of the workload
    workload: AnyWorkload
    where: str  # the workload's place, for messages
    rule: SpeedRule
    main: str = ""  # the gate whose server starts it shares


def find_speed_gates(
    policy: Policy,
    profile: ServingProfile | None,
    *,
    alpha: float | None = None,
    max_length: int | None = None,
) -> list[SpeedGatePlan]:
    """Return the policy's speed gates, each with a valid workload.

    The profile's workloads take precedence. `alpha` defaults to the policy's own. `max_length` is
    in tokens of prompt and answer.

    UsageError: a workload is missing or invalid.
    """
    accelerator = profile.accelerator if profile is not None else None
    level = policy.alpha if alpha is None else alpha
    planned = []
    for speed_gate in policy.gates_on(accelerator):
        key = f"policy key speed.{speed_gate.name}"
        assert policy.speed is not None
        try:
            named_workload, where = load_workload(speed_gate.workload, policy.speed, profile)
        except UsageError as error:
            place = f"{key}, workload {speed_gate.workload}"
            raise UsageError(error.message, where=place, hint=error.hint) from error
        workload = apply_gate_rate(speed_gate, named_workload)
        _check_load(speed_gate, workload, where, key)
        rule = build_rule(speed_gate, level, accelerator, workload, profile)
        check_workload(workload, where, max_length)
        # All loads must fit into the evidence. At a fixed concurrency their requests are unknown.
        loads = 2 * rule.blocks * len(rule.sides)  # with as many repeats
        rate = workload.arrivals.rate if rule.kind == "slo" else None
        requests = loads * (rate or 0) * _send_seconds(workload)
        most = MAX_CHARACTERS // CHARACTERS_PER_REQUEST
        if loads > MAX_LOADS or requests > most:
            raise UsageError(
                f"{speed_gate.name} may come to {loads:,} loads and {requests:,.0f} requests, and "
                f"{MAX_LOADS:,} and {most:,} are the most that can be judged",
                where=key,
                hint=f"ask for fewer {'blocks' if rule.kind == 'ratio' else 'starts'}, or give the "
                "workload fewer 'seconds'",
            )
        planned.append(
            SpeedGatePlan(
                speed_gate.name, speed_gate.workload, workload, where, rule, speed_gate.main
            )
        )
    return planned


def _check_load(speed_gate: SpeedGate, workload: AnyWorkload, where: str, key: str) -> None:
    """Raise UsageError if the gate cannot be measured with that workload."""
    arrivals = workload.arrivals
    gate = speed_gate.gate
    concurrency = arrivals.concurrency
    rate = arrivals.rate or 0.0
    if (speed_gate.kind == "ratio") == (concurrency is None):
        raise UsageError(
            f"'{speed_gate.workload}' has {arrivals.words}: a ratio of throughput needs several "
            "requests in flight, and limits of latencies need a rate of arrivals",
            where=f"{key}; {where}, key arrivals",
            hint="write 'arrivals: {concurrency: 64}' there"
            if speed_gate.kind == "ratio"
            else "write 'rate: 12' into the gate of 'slo'",
        )
    limits = gate.limits or {} if isinstance(gate, SloGate) else {}
    of_tokens = next((name for name in limits if name.startswith("tpot")), None)
    if of_tokens and getattr(workload, "output_tokens", None) == 1:
        raise UsageError(
            f"{speed_gate.name} limits {of_tokens}, the time of each token after the first, and "
            "answers have one token",
            where=f"{where}, key output_tokens",
            hint=f"give at least 2, or limit {of_tokens.replace('tpot', 'ttft')} alone",
        )
    percentile = max_percentile(limits) if limits and rate else None
    if percentile is not None and rate * workload.seconds < _expected_requests(percentile):
        expected = _expected_requests(percentile)
        cure = f"give at least {math.ceil(expected / rate)} seconds"
        if expected / rate > MAX_SECONDS:
            least = 1.005 * expected / MAX_SECONDS  # rounded up
            cure = f"give a rate of at least {least:.3g}, and 'seconds: {MAX_SECONDS}'"
        if percentile > MEDIAN:
            cure += ", or a limit on a smaller percentile"
        raise UsageError(
            f"P{percentile} needs {min_requests(percentile)} requests a round, and rounds of "
            f"{workload.seconds:g} seconds at {rate:g} requests/s have "
            f"{rate * workload.seconds:g} on average",
            where=f"{where}, key seconds",
            hint=cure,
        )
    requests = _send_seconds(workload) * rate
    cure = "give a lower rate, or fewer 'seconds' and 'warmup_seconds'"
    if concurrency is not None:
        requests = MIN_LOAD_WAVES * max(concurrency, getattr(workload, "prefixes", 1))
        most = MAX_REQUESTS // MIN_LOAD_WAVES
        cure = f"give a 'concurrency', and 'prefixes' if there are any, of at most {most:,}"
    if requests > MAX_REQUESTS:
        raise UsageError(
            f"a load of it has {requests:,.0f} requests, and {MAX_REQUESTS:,} are the most",
            where=f"{where}, key arrivals",
            hint=cure,
        )


def _send_seconds(workload: AnyWorkload) -> float:
    return workload.seconds + 2 * workload.warmup_seconds


def _expected_requests(percentile: int) -> float:
    needed = min_requests(percentile)
    return needed + 4 * math.sqrt(needed)  # hardly any Poisson count is 4 deviations below


def dump_workload(speed_gate: SpeedGatePlan) -> tuple[dict[str, Any], str | None]:
    """Return the workload as parameters, and its file.

    UsageError: the file is invalid.
    """
    workload = _pin_file(speed_gate.workload)
    if isinstance(workload, FileWorkload):
        return without_place(workload), str(workload.path)
    return workload.model_dump(), None


def pin_files(policy: Policy, accelerator: Accelerator | None) -> Policy:
    """Return the policy with file digests in used workloads.

    Gates must be valid (`find_speed_gates`); `accelerator` is None for endpoints.
    """
    named = {speed_gate.workload for speed_gate in policy.gates_on(accelerator)}
    if policy.speed is None or not named:
        return policy
    own = policy.speed.workloads
    pinned = {
        name: _pin_file(workload) if name in named else workload for name, workload in own.items()
    }
    speed = policy.speed.model_copy(update={"workloads": pinned})
    return policy.model_copy(update={"speed": speed})


def _pin_file(workload: AnyWorkload) -> AnyWorkload:
    if not isinstance(workload, FileWorkload):
        return workload
    return workload.model_copy(update={"sha256": digest_file(workload.path)})

"""One variant's verdict from kept evidence: every suite of the policy, throughput, and speed.

A pure function of what the stage `judge` has at hand, so that anyone can compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from artifacts.stages.benchmark import BENCHMARK
from artifacts.stages.evaluate import EVALUATE
from artifacts.stages.judge import JudgeParameters, JudgeResult
from artifacts.stages.questions import QUESTIONS
from artifacts.stages.speed import SPEED as LOADED
from eval_gates.drafted import Drafted
from eval_gates.judge import judge_suite, overall
from eval_gates.records import ThroughputReport
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.report import SpeedReport, judge_speed
from eval_gates.throughput import judge_throughput
from pipeline.core.stage_record import StageRecord

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]
Loads = Callable[[str], list[MeasuredLoad]]

OF_MEASURING = ("lives", "loads_per_life", "allowance", "allowance_alpha", "must_count_hits")
OF_THE_SEARCH = ("start", "lowest", "highest", "steered_by")
SPEED = "speed."  # begins the role of a stage that measured a claim on speed


def judge_evidence(
    parameters: JudgeParameters,
    roles: set[str],
    answers: Answers,
    record: Record,
    loads: Loads,
) -> JudgeResult:
    """The verdict from kept evidence; nothing else is read, so anyone can compute it again.

    Args:
        parameters: of the judge stage: policy, family, planned_bets, accelerator,
            throughput_note, trial.
        roles: of the stages that are there.
        answers: of a stage, in the order of asking, by role.
        record: of a stage, by role.
        loads: of a stage `speed`, in the order of measuring, by role.
    """
    policy, planned = parameters.policy, parameters.planned_bets or {}
    questions = {name: QUESTIONS.result_of(record(f"questions.{name}")) for name in policy.suites}
    gates = [
        judge_suite(
            name,
            suite,
            metric=EVALUATE.result_of(record(f"candidate.{name}")).metric,
            baseline=answers(f"baseline.{name}"),
            candidate=answers(f"candidate.{name}"),
            again=answers(f"again.{name}") if f"again.{name}" in roles else [],
            available=questions[name].units,
            guessing=questions[name].guessing,
            family=parameters.family,
            alpha=policy.alpha,
            planned_bet=planned.get(name),
        )
        for name, suite in policy.suites.items()
    ]
    throughput = throughput_of(parameters, record) if has_load_test(roles) else None
    speed = speed_of(parameters, roles, record, loads)
    verdict, reason, p_value = overall(gates, throughput, speed)
    number = parameters.number
    return JudgeResult(
        verdict=verdict,
        reason=reason if number in (None, 1) else f"{reason}; trial {number} of this baseline",
        p_value=p_value,
        trial=number,
        gates=gates,
        throughput=throughput,
        speed=speed,
        drafted=drafted_by(policy.suites, roles, record),
    )


def drafted_by(suites: Iterable[str], roles: set[str], record: Record) -> dict[str, Drafted]:
    """What the variant's engine counted of speculative decoding, where it was measured."""
    found = {name: EVALUATE.result_of(record(f"candidate.{name}")).drafted for name in suites}
    if has_load_test(roles):
        found["throughput"] = BENCHMARK.result_of(record("candidate.benchmark")).drafted
    return {name: drafted for name, drafted in found.items() if drafted is not None}


def speed_of(
    parameters: JudgeParameters, roles: set[str], record: Record, loads: Loads
) -> list[SpeedReport]:
    """A report for each of the policy's claims on speed; one that was not measured is undecided.

    Of what a stage says of its rule, only how its servers lived and where rates were looked for is
    taken, and what its workload says of hits; the rest is the policy's.
    """
    policy, reports = parameters.policy, []
    for claim in policy.speed.claims if policy.speed else ():
        role = f"{SPEED}{claim.name}"
        kept = LOADED.parameters_of(record(role)).rule if role in roles else {}
        rule = claim.rule(parameters.accelerator or None, policy.alpha, kept.get("hit_rate"))
        measuring = {key: kept[key] for key in OF_MEASURING + OF_THE_SEARCH if key in kept}
        reports.append(
            judge_speed(
                claim.name,
                claim.kind,
                workload=claim.workload,
                tier=claim.tier,
                rule={**rule, **measuring},
                loads=loads(role) if role in roles else [],
                at=claim.at,
            )
        )
    return reports


def has_load_test(roles: set[str]) -> bool:
    """Whether there is a load test; endpoints that someone else serves have none."""
    return "candidate.benchmark" in roles


def throughput_of(parameters: JudgeParameters, record: Record) -> ThroughputReport:
    """The throughput gate."""
    policy, accelerator = parameters.policy, parameters.accelerator
    if not accelerator:
        raise ValueError("it does not say what the load test was on")
    baseline, candidate = (
        BENCHMARK.result_of(record(f"{side}.benchmark")) for side in ("baseline", "candidate")
    )
    return judge_throughput(
        baseline.model_dump(),
        candidate.model_dump(),
        minimum_ratio=policy.throughput.minimum_ratio[accelerator],
        maximum_failed_requests=policy.throughput.maximum_failed_requests,
        tier=policy.throughput.tier,
        note=parameters.throughput_note,
    )

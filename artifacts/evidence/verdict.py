"""One variant's verdict from kept evidence: every suite of the policy, and every claim on speed.

A pure function of what the stage `judge` has at hand, so that anyone can compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from artifacts.stages.evaluate import EVALUATE
from artifacts.stages.judge import JudgeParameters, JudgeResult
from artifacts.stages.questions import QUESTIONS
from artifacts.stages.speed import SPEED as LOADED
from eval_gates.drafted import Drafted
from eval_gates.judge import judge_suite, overall
from eval_gates.load_test import LoadTest, judge_load_test
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.report import SpeedReport, judge_speed
from pipeline.core.stage_record import StageRecord

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]
Loads = Callable[[str], list[MeasuredLoad]]

OF_MEASURING = ("lives", "loads_per_life", "allowance", "allowance_alpha", "must_count_hits")
OF_THE_SEARCH = ("start", "lowest", "highest", "steered_by")
CANDIDATE_LOAD = "candidate.benchmark"  # the role of a stage of before
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
            speed_note, trial.
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
            drawn=not parameters.exact_bounds,
        )
        for name, suite in policy.suites.items()
    ]
    speed = [*load_tests(parameters, roles, record), *speed_of(parameters, roles, record, loads)]
    verdict, reason, p_value = overall(gates, speed)
    number = parameters.number
    return JudgeResult(
        verdict=verdict,
        reason=reason if number in (None, 1) else f"{reason}; trial {number} of this baseline",
        p_value=p_value,
        trial=number,
        gates=gates,
        speed=speed,
        drafted=drafted_by(policy.suites, roles, record),
    )


def drafted_by(suites: Iterable[str], roles: set[str], record: Record) -> dict[str, Drafted]:
    """What the variant's engine counted of speculative decoding, where it was measured."""
    found = {name: EVALUATE.result_of(record(f"candidate.{name}")).drafted for name in suites}
    if CANDIDATE_LOAD in roles:
        found["throughput"] = LoadTest.model_validate(record(CANDIDATE_LOAD).result).drafted
    return {name: drafted for name, drafted in found.items() if drafted is not None}


def speed_of(
    parameters: JudgeParameters, roles: set[str], record: Record, loads: Loads
) -> list[SpeedReport]:
    """A report for each of the policy's claims on speed; one that was not measured is undecided.

    Of what a stage says of its rule, only how its servers lived and where rates were looked for is
    taken, and what its workload says of hits; the rest is the policy's.
    """
    policy, reports, accelerator = parameters.policy, [], parameters.accelerator or None
    for claim in policy.claims_on(accelerator):
        role = f"{SPEED}{claim.name}"
        kept = LOADED.parameters_of(record(role)).rule if role in roles else {}
        rule = claim.rule(accelerator, policy.alpha, kept.get("hit_rate"))
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
                note=parameters.speed_note,
            )
        )
    return reports


def load_tests(parameters: JudgeParameters, roles: set[str], record: Record) -> list[SpeedReport]:
    """Of a policy from before there were claims on speed, its load test; else none."""
    gate = parameters.load_test
    if gate is None:
        return []
    if CANDIDATE_LOAD not in roles:
        if not parameters.accelerator:  # somebody's endpoints had none
            return []
        raise ValueError("its policy has a floor of throughput, and its load test is missing")
    if not parameters.accelerator:
        raise ValueError("it does not say what the load test was on")
    baseline, candidate = (
        LoadTest.model_validate(record(f"{side}.benchmark").result)
        for side in ("baseline", "candidate")
    )
    minimum = gate.minimum_ratio[parameters.accelerator]
    return [judge_load_test(baseline, candidate, gate, minimum).as_claim()]

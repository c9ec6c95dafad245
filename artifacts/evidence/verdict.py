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
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.report import SpeedGateReport, decide_speed_gate
from eval_gates.verdicts import judge_suite, overall
from pipeline.core.stage_record import StageRecord

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]
Loads = Callable[[str], list[LoadRun]]

OF_MEASURING = (
    "server_mode",
    "loads_per_server_run",
    "restart_allowance",
    "restart_allowance_alpha",
    "must_count_hits",
)
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
        parameters: of the judge stage: policy, attempt, family, planned_bets, accelerator,
            speed_note.
        roles: of the stages that are there.
        answers: of a stage, in the order of asking, by role.
        record: of a stage, by role.
        loads: of a stage `speed`, in the order of measuring, by role.
    """
    policy = parameters.policy
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
            alpha=level_of_suite(parameters, name, record),
            planned_bet=parameters.planned_bets.get(name),
        )
        for name, suite in policy.suites.items()
    ]
    speed = speed_of(parameters, roles, record, loads)
    verdict, reason, p_value = overall(gates, speed)
    attempt = parameters.attempt
    return JudgeResult(
        verdict=verdict,
        reason="; ".join(filter(None, (reason, attempt.words))),
        p_value=p_value,
        attempt=attempt.number,
        gates=gates,
        speed=speed,
        spec_decode=drafted_by(policy.suites, record),
    )


def level_of_suite(parameters: JudgeParameters, name: str, record: Record) -> float:
    """The level that the suite's gate is decided at: that of its attempt and measurement."""
    asked = EVALUATE.parameters_of(record(f"candidate.{name}"))
    return parameters.attempt.level(asked.measurement)


def drafted_by(suites: Iterable[str], record: Record) -> dict[str, SpecDecodeStats]:
    """What the variant's engine counted of speculative decoding, where it was measured."""
    found = {name: EVALUATE.result_of(record(f"candidate.{name}")).spec_decode for name in suites}
    return {name: drafted for name, drafted in found.items() if drafted is not None}


def speed_of(
    parameters: JudgeParameters, roles: set[str], record: Record, loads: Loads
) -> list[SpeedGateReport]:
    """A report for each of the policy's claims on speed; one that was not measured is undecided.

    Of what a stage says of its rule, only how its servers lived and where rates were looked for is
    taken, and what its workload says of hits; the rest is the policy's.
    """
    policy, reports, accelerator = parameters.policy, [], parameters.accelerator or None
    for claim in policy.claims_on(accelerator):
        role = f"{SPEED}{claim.name}"
        stage = LOADED.parameters_of(record(role)) if role in roles else None
        kept = stage.rule if stage is not None else {}
        level = parameters.attempt.level(stage.measurement if stage is not None else 1)
        rule = claim.rule(accelerator, level, kept.get("hit_rate"))
        measuring = {key: kept[key] for key in OF_MEASURING if key in kept}
        if role in roles:
            measuring["began"] = LOADED.result_of(record(role)).began
        reports.append(
            decide_speed_gate(
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

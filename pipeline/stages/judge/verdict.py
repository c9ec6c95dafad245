"""One variant's verdict from kept evidence: every suite and every speed gate of the policy.

It is a pure function of the stage's inputs, so anyone can compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from eval_gates.cost import judge_cost
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.report import SpeedGateReport, decide_speed_gate
from eval_gates.verdicts import judge_suite, overall
from pipeline.core.stage_record import StageRecord
from pipeline.stages.attempts import History
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JudgeParameters, JudgeResult
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.speed import ROLE
from pipeline.stages.speed import SPEED as LOADED

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]
Loads = Callable[[str], list[LoadRun]]


def judge_evidence(
    parameters: JudgeParameters,
    roles: set[str],
    answers: Answers,
    record: Record,
    loads: Loads,
    history: History,
) -> JudgeResult:
    """Return the verdict from kept evidence; nothing else is read.

    Args:
        parameters: of the judge stage.
        roles: of the available stages.
        answers: returns a stage's answers in the order of asking, by role.
        record: returns a stage's record, by role.
        loads: returns a stage `speed`'s loads in the order of measuring, by role.
        history: of the baseline; it is shown and decides nothing.
    """
    policy = parameters.policy
    check_asked_alike(policy.suites, record)
    questions = {name: QUESTIONS.result_of(record(f"questions.{name}")) for name in policy.suites}
    gates = [
        judge_suite(
            name,
            suite,
            parameters.gates[name],
            metric=EVALUATE.result_of(record(f"candidate.{name}")).metric,
            baseline=answers(f"baseline.{name}"),
            candidate=answers(f"candidate.{name}"),
            again=answers(f"again.{name}") if f"again.{name}" in roles else [],
            guessing=questions[name].guessing,
        )
        for name, suite in policy.suites.items()
    ]
    speed = speed_of(parameters, roles, record, loads)
    cost = [
        judge_cost(name, rule, answers(f"baseline.{name}"), answers(f"candidate.{name}"))
        for name, rule in parameters.cost.items()
    ]
    verdict, reason, p_value = overall(gates, speed, cost)
    return JudgeResult(
        verdict=verdict,
        reason="; ".join(filter(None, (reason, history.words))),
        p_value=p_value,
        history=history,
        gates=gates,
        speed=speed,
        cost=cost,
        spec_decode=drafted_by(policy.suites, record),
    )


def check_asked_alike(suites: Iterable[str], record: Record) -> None:
    """Raise ValueError unless both sides were asked in one form: text completions or chat."""
    for name in suites:
        sides = [EVALUATE.parameters_of(record(f"{s}.{name}")) for s in ("baseline", "candidate")]
        forms = [each.endpoint.chat if each.endpoint is not None else None for each in sides]
        if forms[0] != forms[1]:
            raise ValueError(f"{name}: the sides were asked in different forms")


def drafted_by(suites: Iterable[str], record: Record) -> dict[str, SpecDecodeStats]:
    """Return what the variant's engine counted of speculative decoding, by suite."""
    found = {name: EVALUATE.result_of(record(f"candidate.{name}")).spec_decode for name in suites}
    return {name: drafted for name, drafted in found.items() if drafted is not None}


def speed_of(
    parameters: JudgeParameters, roles: set[str], record: Record, loads: Loads
) -> list[SpeedGateReport]:
    """Return a report for each speed gate of the policy; one that was not measured is undecided.

    Raises:
        LookupError: a gate has no rule.
    """
    reports = []
    for claim in parameters.policy.claims_on(parameters.accelerator):
        role, rule = ROLE + claim.name, parameters.speed[claim.name].rule
        if role in roles:
            rule = rule.model_copy(update={"began": LOADED.result_of(record(role)).began})
        reports.append(
            decide_speed_gate(
                claim.name,
                rule,
                workload=claim.workload,
                tier=claim.tier,
                loads=loads(role) if role in roles else [],
                at=claim.at,
                note=parameters.profile.speed_note if parameters.profile is not None else None,
            )
        )
    return reports

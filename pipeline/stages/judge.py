"""Turns the evidence on one variant into a verdict, by the policy's margins alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eval_gates.judge import judge_suite, overall
from eval_gates.records import ThroughputReport
from eval_gates.throughput import judge_throughput
from pipeline.errors import EvaluationDataError
from pipeline.records import StageRecord
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import read_answers
from pipeline.trials import number_in
from recipes.policy import Policy

REVISION = 6

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]


def run(context: StageContext) -> dict[str, Any]:
    """Judge every suite of the policy, and the throughput where one was measured.

    Raises:
        EvaluationDataError: the evidence of the two sides does not fit together.
    """
    try:
        return judged(
            context.parameters,
            set(context.spec.inputs),
            lambda role: read_answers(context.input_folder(role)),
            context.input_record,
        )
    except ValueError as error:
        raise EvaluationDataError(
            f"the answers of baseline and variant cannot be compared: {error}",
            where=", ".join(str(context.input_folder(role)) for role in context.spec.inputs),
            cure="delete these folders and run the command again: what is missing is asked anew",
        ) from error


def judged(
    parameters: dict[str, Any], roles: set[str], answers: Answers, record: Record
) -> dict[str, Any]:
    """The verdict from kept evidence; nothing else is read, so anyone can compute it again.

    Args:
        parameters: of the judge stage: policy, family, accelerator, throughput_note, trial.
        roles: of the stages that are there.
        answers: of a stage, in the order of asking, by role.
        record: of a stage, by role.
    """
    policy = Policy.model_validate(parameters["policy"])
    gates = [
        judge_suite(
            name,
            suite,
            metric=record(f"candidate.{name}").result["metric"],
            baseline=answers(f"baseline.{name}"),
            candidate=answers(f"candidate.{name}"),
            again=answers(f"again.{name}") if f"again.{name}" in roles else [],
            available=units_of(record(f"questions.{name}").result),
            guessing=record(f"questions.{name}").result["guessing"],
            family=parameters["family"],
            alpha=policy.alpha,
        )
        for name, suite in policy.suites.items()
    ]
    throughput = throughput_of(policy, parameters, record) if measured(roles) else None
    verdict, reason, p_value = overall(gates, throughput)
    number = number_in(parameters)
    return {
        "verdict": verdict,
        "reason": reason if number in (None, 1) else f"{reason}; trial {number} of this baseline",
        "p_value": p_value,
        "trial": number,
        "gates": [gate.model_dump() for gate in gates],
        "throughput": throughput.model_dump() if throughput else None,
    }


def units_of(questions: dict[str, Any]) -> int:
    """How many questions there are; where they belong together, how many clusters."""
    return int(questions.get("clusters") or questions["questions"])


def measured(roles: set[str]) -> bool:
    """Whether there is a load test; endpoints that someone else serves have none."""
    return "candidate.benchmark" in roles


def throughput_of(policy: Policy, parameters: dict[str, Any], record: Record) -> ThroughputReport:
    """The throughput gate."""
    return judge_throughput(
        record("baseline.benchmark").result,
        record("candidate.benchmark").result,
        minimum_ratio=policy.throughput.minimum_ratio[parameters["accelerator"]],
        maximum_failed_requests=policy.throughput.maximum_failed_requests,
        tier=policy.throughput.tier,
        note=parameters["throughput_note"],
    )

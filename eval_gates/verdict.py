"""One variant's verdict from kept evidence: every suite of the policy, throughput, and speed.

A pure function of what the stage `judge` has at hand, so that anyone can compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eval_gates.judge import judge_suite, overall
from eval_gates.planned_bets import bets_in
from eval_gates.records import ThroughputReport
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.report import SpeedReport, judge_speed
from eval_gates.throughput import judge_throughput
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy

Answers = Callable[[str], list[dict[str, Any]]]
Record = Callable[[str], StageRecord]
Loads = Callable[[str], list[MeasuredLoad]]

OF_LIVES = ("lives", "allowance", "allowance_alpha")
SPEED = "speed."  # begins the role of a stage that measured a claim on speed


def judge_evidence(
    parameters: dict[str, Any],
    roles: set[str],
    answers: Answers,
    record: Record,
    loads: Loads,
) -> dict[str, Any]:
    """The verdict from kept evidence; nothing else is read, so anyone can compute it again.

    Args:
        parameters: of the judge stage: policy, family, planned_bets, accelerator,
            throughput_note, trial.
        roles: of the stages that are there.
        answers: of a stage, in the order of asking, by role.
        record: of a stage, by role.
        loads: of a stage `speed`, in the order of measuring, by role.
    """
    policy = Policy.model_validate(parameters["policy"])
    planned = bets_in(parameters)
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
            planned_bet=planned.get(name),
        )
        for name, suite in policy.suites.items()
    ]
    throughput = throughput_of(policy, parameters, record) if has_load_test(roles) else None
    speed = speed_of(policy, parameters, roles, record, loads)
    verdict, reason, p_value = overall(gates, throughput, speed)
    number = number_in(parameters)
    return {
        "verdict": verdict,
        "reason": reason if number in (None, 1) else f"{reason}; trial {number} of this baseline",
        "p_value": p_value,
        "trial": number,
        "gates": [gate.model_dump() for gate in gates],
        "throughput": throughput.model_dump() if throughput else None,
        # A policy that claims none has verdicts as they were before there were such claims.
        **({"speed": [each.model_dump() for each in speed]} if policy.speed else {}),
    }


def speed_of(
    policy: Policy, parameters: Mapping[str, Any], roles: set[str], record: Record, loads: Loads
) -> list[SpeedReport]:
    """A report for each of the policy's claims on speed; one that was not measured is undecided.

    Of what a stage says of its rule, only how its server's lives were arranged is taken; the rest
    is the policy's.
    """
    if policy.speed is None:
        return []
    reports = []
    for claim in policy.speed.claims:
        role = f"{SPEED}{claim.name}"
        kept = record(role).parameters["rule"] if role in roles else {}
        rule = claim.rule(parameters["accelerator"] or None, policy.alpha, kept.get("hit_rate"))
        lives = {key: kept[key] for key in OF_LIVES if key in kept}
        reports.append(
            judge_speed(
                claim.name,
                claim.kind,
                workload=claim.workload,
                tier=claim.tier,
                rule={**rule, **lives},
                loads=loads(role) if role in roles else [],
                at=claim.at,
            )
        )
    return reports


def units_of(questions: dict[str, Any]) -> int:
    """How many questions there are; where they belong together, how many clusters."""
    return int(questions.get("clusters") or questions["questions"])


def has_load_test(roles: set[str]) -> bool:
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


def number_in(parameters: Mapping[str, Any]) -> int | None:
    """Which trial a judge stage's parameters say that it is; None before trials were counted."""
    trial = parameters.get("trial")
    return int(trial["number"]) if trial is not None else None

"""Turns the evidence on one variant into a verdict, by the policy's margins alone."""

from __future__ import annotations

from typing import Any

from eval_gates.judge import judge_suite, overall
from eval_gates.throughput import judge_throughput
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import read_answers
from recipes.schema import Policy

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Judge every suite of the policy and the throughput; all must pass."""
    policy = Policy.model_validate(context.parameters["policy"])
    family = context.parameters["family"]
    gates = [
        judge_suite(
            name,
            suite,
            baseline=read_answers(context.input_folder(f"baseline.{name}")),
            candidate=read_answers(context.input_folder(f"candidate.{name}")),
            family=family,
            alpha=policy.alpha,
        )
        for name, suite in policy.suites.items()
    ]
    throughput = judge_throughput(
        context.input_record("baseline.benchmark").result,
        context.input_record("candidate.benchmark").result,
        minimum_ratio=policy.throughput.minimum_ratio[context.parameters["accelerator"]],
        maximum_failed_requests=policy.throughput.maximum_failed_requests,
        note=context.parameters["throughput_note"],
    )
    verdict, reason = overall(gates, throughput)
    return {
        "verdict": verdict,
        "reason": reason,
        "gates": [gate.model_dump() for gate in gates],
        "throughput": throughput.model_dump(),
    }

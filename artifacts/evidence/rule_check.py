"""Compares a verdict's rules with those of its policy, profile and trial.

The rules must account for the chance of a false pass in each variant.
Planning wrote each rule into the measuring stage and the judge stage; both must equal a new plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval_gates.gate_rule import gate_rule_of
from eval_gates.speed.gate_rule import SpeedGateRule, apply_gate_rate, build_rule
from pipeline.core.stage_record import StageRecord
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments, under_load
from pipeline.stages.attempts import trial_of
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JudgeParameters, cost_rules_of
from pipeline.stages.speed import ROLE, SPEED
from recipes.schema import ServingProfile
from recipes.speed import SpeedGate
from recipes.workload import AnyWorkload, read_pinned, without_place

CANDIDATE = "candidate."
# Sums of floating-point numbers may differ in the last digits on another machine.
RELATIVE_TOLERANCE = 1e-9


def find_rule_mismatches(
    judge: JudgeParameters, recipe: str, tried: Sequence[str], records: Mapping[str, StageRecord]
) -> Iterator[str]:
    """Yield where a verdict's rules differ from its policy and trial.

    Args:
        judge: parameters of its stage.
        recipe: of the verdict.
        tried: recipes that were tried together.
        records: the available stages, by role; another check reports missing ones.

    Raises:
        EvidenceError: a record has another shape.
        ValueError: a workload or a speed gate is invalid on that machine.
    """
    trial, policy = judge.trial, judge.policy
    if judge.recipe not in (None, recipe):
        yield f"its stage 'judge' is on another variant, {judge.recipe!r}"
    if sorted(trial.variants) != sorted(tried):
        yield (
            f"its trial is of {', '.join(sorted(trial.variants))}, "
            f"and {', '.join(sorted(tried))} are named"
        )
    if trial != trial_of(trial.baseline, trial.variants, policy):
        yield "its trial has other criteria than the policy"
    for role, record in records.items():
        if record.stage == SPEED.name:
            loaded = SPEED.parameters_of(record)
            for side, served in loaded.sides.items():
                mode = loaded.rule.server_mode
                yield from find_served_otherwise(role, side, served, judge.profile, mode)
        if record.stage != EVALUATE.name:
            continue
        asked = EVALUATE.parameters_of(record)
        yield from find_served_otherwise(role, role.partition(".")[0], asked, judge.profile)
    for name, suite in policy.suites.items():
        role, gate, level = CANDIDATE + name, judge.gates[name], trial.level
        if role in records:
            asked = EVALUATE.parameters_of(records[role])
            asked_by = asked.rule.model_dump() if asked.rule is not None else None
            if find_differing_values("", asked_by, gate.model_dump()):
                yield f"{role}: asked by another rule than it is judged by"
        wanted = gate_rule_of(suite, judge.family, level)
        yield from _differing(role, gate.model_dump(), wanted.model_dump())
    yield from find_other_costs(judge, records)
    claims = {ROLE + claim.name: claim for claim in policy.claims_on(judge.accelerator)}
    own = policy.speed.workloads if policy.speed is not None else {}
    measured = {role: each for role, each in records.items() if each.stage == SPEED.name}
    yield from (f"{role}: its policy makes no such claim" for role in measured.keys() - claims)
    for role, claim in claims.items():
        told, level = judge.speed[claim.name], trial.level
        if role in measured:
            loaded = SPEED.parameters_of(measured[role])
            if loaded.decided_by != told:
                yield f"{role}: measured by another rule than it is judged by"
        yield from find_other_claim(role, told, claim, own, judge.profile, level)


def find_other_costs(judge: JudgeParameters, records: Mapping[str, StageRecord]) -> Iterator[str]:
    """Yield where a rule of the gate `cost` is not that of the policy and the suite's gate."""
    named = judge.policy.cost.suites if judge.policy.cost is not None else ()
    asked = {
        name: EVALUATE.parameters_of(records[CANDIDATE + name])
        for name in named
        if CANDIDATE + name in records
    }
    wanted = cost_rules_of(judge.policy, judge.family, judge.gates, asked)
    for name in wanted.keys() | judge.cost.keys():
        told, rule = judge.cost.get(name), wanted.get(name)
        yield from _differing(
            f"cost.{name}",
            told.model_dump() if told is not None else {},
            rule.model_dump() if rule is not None else {},
        )


def find_served_otherwise(
    role: str,
    side: str,
    served: ServedModel,
    profile: ServingProfile | None,
    server_mode: str = "",
) -> Iterator[str]:
    """Yield where a stage's serving differs from the profile; the mode is a speed gate's."""
    if profile is None:
        return
    drafted = profile.speculative.model if profile.speculative is not None else None
    is_baseline = side != CANDIDATE.rstrip(".")
    wanted = ServingArguments.of(profile, is_baseline=is_baseline, draft=drafted)
    if served.serving != under_load(wanted, profile.accelerator, server_mode):
        yield f"{role}: its {side} was not served as the verdict's profile says"


def find_other_claim(
    place: str,
    told: SpeedGateRule,
    claim: SpeedGate,
    own: Mapping[str, AnyWorkload],
    profile: ServingProfile | None,
    level: float,
) -> Iterator[str]:
    """Yield where a rule differs from the policy's speed gate.

    Args:
        place: of the rule, for messages.
        told: the rule, with its workload unless that is in `own`.
        claim: of the policy.
        own: the policy's own workloads.
        profile: of both sides; None for endpoints.
        level: of the trial.

    Raises:
        ValueError: the workload or the speed gate is invalid on that machine.
    """
    accelerator = profile.accelerator if profile is not None else None
    known = own[claim.workload] if claim.workload in own else read_pinned(told.workload)
    workload = apply_gate_rate(claim, known)
    rule = build_rule(claim, level, accelerator, workload, profile)
    wanted = SpeedGateRule(name=claim.workload, workload=without_place(workload), rule=rule)
    yield from _differing(place, told.model_dump(), wanted.model_dump())


def _differing(place: str, told: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for line in find_differing_values("", told, wanted, "these give"):
        yield f"{place}: not the rule of its policy, profile and trial: {line}"


def find_differing_values(
    path: str, kept: Any, computed: Any, words: str = "computed"
) -> list[str]:
    """Return every path at which two values differ, below `path`."""
    if isinstance(kept, dict) and isinstance(computed, dict):
        names = kept.keys() | computed.keys()
        return [
            line
            for name in sorted(names)
            for line in find_differing_values(
                f"{path}.{name}", kept.get(name), computed.get(name), words
            )
        ]
    if isinstance(kept, list | tuple) and isinstance(computed, list | tuple):
        if len(kept) != len(computed):
            return [f"{path[1:]}: kept {len(kept)} of them, {words} {len(computed)}"]
        found = [
            line
            for number, (ours, theirs) in enumerate(zip(kept, computed, strict=True))
            for line in find_differing_values(f"{path}[{number}]", ours, theirs, words)
        ]
        # One answer changes every later point of the trail, and the first says it all.
        return found[:1] if path.endswith(".e_process") else found
    if isinstance(kept, float) and isinstance(computed, float):
        same = math.isclose(kept, computed, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    else:
        same = kept == computed
    return [] if same else [f"{path[1:]}: kept {kept!r}, {words} {computed!r}"]

"""What compares arms without gates: `--screen`, `--ablate`, and the candidates of `tune`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from eval_gates.speed.rules import SpeedRule
from pipeline.environments.definition import LOAD_GENERATOR
from pipeline.plan.plan import MAKING, Arm, Plan
from pipeline.plan.speed_plan import SpeedGatePlan, dump_workload, find_speed_gates
from pipeline.stages import CHECKED_WEIGHTS, FIRST_TEXTS, speed_role
from pipeline.stages.block import BlockParameters, LoadParameters
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedRuntime
from prepare.stage import StageSpec
from recipes.engines.engine import KV_DTYPE, kv_suffix
from recipes.policy import Policy
from recipes.schema import Family

SUITE = "fidelity"  # of a policy that has none of this kind
WITHOUT_A_GATE = 0.5  # margin that no arm is compared with


def screening_policy(policy: Policy) -> Policy:
    """Return the policy's first `fidelity` suite, or carried conversations."""
    own = {name: suite for name, suite in policy.suites.items() if suite.kind == SUITE}
    name = SUITE
    keys = {"kind": SUITE}
    if own:
        name, suite = next(iter(own.items()))
        keys = suite.model_dump(exclude_none=True)
    margins = dict.fromkeys(get_args(Family), WITHOUT_A_GATE)
    suites = {name: {**keys, "tier": "critical", "margins": margins}}
    made = Policy.model_validate({"name": policy.name, "summary": policy.summary, "suites": suites})
    kept = {key: getattr(policy, key) for key in ("speed", "broken", "alpha", "promotion")}
    if own:
        kept["suites"] = {name: made.suites[name].with_paths_of(own[name])}
    return made.model_copy(update=kept)


def screening_stages(plan: Plan, arm: Arm) -> dict[str, StageSpec]:
    """Return the arm's stages by role; they count no attempt, `compare_arms` does."""
    (suite,) = plan.policy.suites
    asked = arm.stages[suite]
    stages = {role: arm.stages[role] for role in (*MAKING, FIRST_TEXTS) if role in arm.stages}
    stages[suite] = EVALUATE.spec(
        asked.variant,
        EVALUATE.parameters_of(asked).model_copy(update={"rule": None}),
        asked.inputs,
        EVALUATE.runtime_of(asked).model_copy(update={"counted": None}),
        Path(asked.store),
    )
    for speed_gate in find_speed_gates(plan.policy, plan.profile, max_length=arm.max_length)[:1]:
        gate = SPEED.parameters_of(plan.variants[0].stages[speed_role(speed_gate.gate)])
        load = load_stage(arm, speed_gate, gate.environment, gate.machine, loads=1)
        stages[speed_role("screening")] = load
    return stages


def kv_dtype(arm: Arm) -> str:
    """Return the type of its KV cache."""
    return str(arm.identity.serving.engine_arguments[KV_DTYPE])


def part_name(arm: Arm, dtype: str) -> str:
    """Return the name of the arm's weights with that KV cache; a pair of `--kv` has it already."""
    return f"{arm.recipe.name.removesuffix(kv_suffix(kv_dtype(arm)))}{kv_suffix(dtype)}"


def with_kv_dtype(arm: Arm, dtype: str, judged: StageSpec, suite: str) -> Arm:
    """Return the arm with this KV cache type, to answer the judged stage's conversations."""
    served = arm.identity.serving
    engine_arguments = {**served.engine_arguments, KV_DTYPE: dtype}
    arguments = replace(served, engine_arguments=engine_arguments)
    name = part_name(arm, dtype)
    asked = arm.stages[suite]
    inputs = {r: i for r, i in asked.inputs.items() if r in (CHECKED_WEIGHTS, "questions")}
    answered = EVALUATE.spec(
        name,
        EVALUATE.parameters_of(asked).model_copy(update={"serving": arguments, "rule": None}),
        {"baseline": judged.inputs["baseline"], **inputs},
        EVALUATE.runtime_of(asked).model_copy(update={"counted": None}),
        Path(asked.store),
    )
    return replace(
        arm,
        recipe=arm.recipe.model_copy(update={"name": name}),
        identity=arm.identity.model_copy(update={"serving": arguments}),
        stages={
            **{role: arm.stages[role] for role in MAKING if role in arm.stages},
            suite: answered,
        },
    )


def load_stage(
    arm: Arm, speed_gate: SpeedGatePlan, environment: str, machine: str, loads: int
) -> StageSpec:
    """Return the stage that measures output tokens/s under the gate's workload.

    `environment` is the load generator's identity.
    """
    workload, file = dump_workload(speed_gate)
    sanity = arm.stages[FIRST_TEXTS]
    measured = LoadParameters(
        name=speed_gate.name,
        workload=workload,
        rule=SpeedRule(
            kind="screening",
            alpha=speed_gate.rule.alpha,
            blocks=loads,
            hit_rate=speed_gate.workload.declared_hit_rate,
            starts="once",
        ),
        environment=environment,
        machine=machine,
    )
    name = arm.recipe.name
    return SPEED.spec(
        name,
        SpeedParameters(**dict(measured), sides={"candidate": arm.identity}),
        {"candidate": sanity},
        SpeedRuntime(
            tokenizer=str(arm.folder),
            environment=LOAD_GENERATOR,
            gate="screening",
            file=file,
            measurement=BlockParameters(**dict(measured), arms={name: sanity.key}),
            arm=name,
            first_file=file,
        ),
        Path(sanity.store),
    )

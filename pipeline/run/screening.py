"""Compares arms without gates: `prepare model --screen`, and the candidates of `prepare tune`.

With `--ablate` each variant's weights are served with the baseline's KV cache as well, and the
baseline's weights with the variant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from artifacts.run_record import ScreenedModel
from eval_gates.clusters import means
from eval_gates.quality_gate import check_paired
from eval_gates.statistics.effect import measure_effect
from pipeline.plan.plan import Arm, PlanProgress
from pipeline.plan.screening_plan import kv_dtype, part_name, screening_stages, with_kv_dtype
from pipeline.run.loop import do_pieces
from pipeline.run.pieces import ArmPieces
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.stages import FIRST_TEXTS, WEIGHTS, speed_role
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED
from prepare.errors import ExitCode, PrepareError, ServingError
from prepare.stage import StageSpec

SAME_FACTS = {"kv_cache", "kv_bytes_a_token"}
"""Facts of a model's KV cache that do not depend on its weights' format."""
CACHE_FACTS = ("kv_cache", "kv_bytes_a_token", "kv_cache_tokens")


def compare_arms(
    servers: Servers,
    state: PlanProgress,
    baseline_bytes: int | None = None,
    *,
    ablate: bool = False,
) -> ExitCode:
    """Return 0 if a variant was measured; raise the baseline's error."""
    plan = state.plan
    run = servers.run
    for spec in plan.shared.values():
        run.run_stage(spec)
    # The best of the screened may be gated next, so these are tried variants.
    screened = Counted(trial=plan.trial, gate="", run=plan.run)
    AttemptLedger(run.store).begin(screened, kind="screen")
    models: list[ScreenedModel] = []
    stored: dict[str, dict[str, str]] = {}  # by format, what all weights have in common
    for arm in (*plan.arms, *(find_parts(servers, state) if ablate else ())):
        name = arm.recipe.name
        is_made = WEIGHTS in arm.stages
        try:
            measured = compare_with_baseline(servers, state, arm)
        except PrepareError as error:
            if arm is plan.baseline:
                raise
            run.progress.note(f"{name}: {error}")
            measured = ScreenedModel(name=name, reason=error.message)
        size = run.weights_bytes(arm) if is_made else baseline_bytes
        changes: dict[str, Any] = {"weights_bytes": size, "is_part": arm not in plan.arms}
        dtype = kv_dtype(arm)
        if measured.cache:
            shared = SAME_FACTS & measured.cache.keys()
            stored[dtype] = {fact: measured.cache[fact] for fact in shared}
        changes["cache"] = measured.cache or stored.get(dtype, {})
        models.append(measured.model_copy(update=changes))
        run.log.update(screened=list(models))
    is_any = any(model.effect is not None for model in models[1:])
    return ExitCode.SUCCESS if is_any else ExitCode.EXPECTED_ERROR


def find_parts(servers: Servers, state: PlanProgress) -> list[Arm]:
    """Return each variant with the baseline's KV cache, and the baseline with each other."""
    plan = state.plan
    parts = {}
    (suite,) = plan.policy.suites
    pairs = {arm.recipe.name for arm in plan.variants}
    for arm in plan.variants:
        before = kv_dtype(plan.baseline)
        after = kv_dtype(arm)
        if before == after:
            servers.run.progress.note(
                f"{arm.recipe.name}: its KV cache is of the baseline's type, {after}, so all that "
                "it lost, it lost by its weights"
            )
            continue
        for origin, dtype in ((arm, before), (plan.baseline, after)):
            name = part_name(origin, dtype)
            if name not in pairs:  # of `--kv`: it is measured as a variant
                parts[name] = with_kv_dtype(origin, dtype, arm.stages[suite], suite)
    return list(parts.values())


def compare_with_baseline(servers: Servers, state: PlanProgress, arm: Arm) -> ScreenedModel:
    """Make, serve and ask one arm."""
    plan = state.plan
    run = servers.run
    name = arm.recipe.name
    (suite,) = plan.policy.suites
    is_part = FIRST_TEXTS not in arm.stages
    stages = arm.stages if is_part else screening_stages(plan, arm)
    measure_arm(servers, state, replace(arm, stages=stages))
    own = run.answers(stages[suite])
    before = own if arm is plan.baseline else run.answers(plan.baseline.stages[suite])
    check_paired(suite, before, own)
    is_same = [(a.score, a.nats) for a in own] == [(b.score, b.nats) for b in before]
    if is_part and is_same and kv_dtype(arm) != kv_dtype(plan.baseline):
        # Some engines' prefill does not read the cache (MLA).
        raise ServingError(
            "not measured: the engine reads a prompt without its KV cache", where=name
        )
    sides = (before, own)
    scores, nats = ([means(side, key) for side in sides] for key in ("score", "nats"))
    rate = None
    if load := stages.get(speed_role("screening")):
        rate = SPEED.parameters_of(load).rule.evaluate(run.loads(load)).estimate
    return ScreenedModel(
        name=name,
        effect=measure_effect(scores, nats, plan.policy.alpha),
        output_tokens_per_s=rate,
        cache=cache_of(run, stages),
        stages={role: spec.key for role, spec in stages.items()},
    )


def cache_of(run: Run, stages: Mapping[str, StageSpec]) -> dict[str, str]:
    """Return what the arm's server says of its KV cache; {} of a part of an ablation."""
    if (spec := stages.get(FIRST_TEXTS)) is None:
        return {}
    server = SANITY.result_of(run.find_finished(spec)).server
    told = server.__pydantic_extra__ or {}
    return {fact: told[fact] for fact in CACHE_FACTS if fact in told}


def measure_arm(servers: Servers, state: PlanProgress, arm: Arm) -> None:
    """Do all of the arm's stages; raise the error of a piece that failed."""
    gates = [spec for spec in arm.stages.values() if spec.stage == SPEED.name]
    do_pieces(servers, ArmPieces(servers.run, state, arm, gates))

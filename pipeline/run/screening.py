"""`prepare model --screen`: serves each arm once, without gates.

With `--ablate` each variant's weights are served with the baseline's KV cache as well, and the
baseline's weights with the variant's.
"""

from __future__ import annotations

from dataclasses import replace

from artifacts.run_record import ScreenedModel
from eval_gates.clusters import group_by_cluster, means
from eval_gates.effect import measure_effect
from eval_gates.verdicts import check_paired
from pipeline.plan.plan import MAKING, Arm
from pipeline.plan.screening import kv_dtype, screening_stages, with_kv_dtype
from pipeline.run.serving import Serving
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.speed import ROLE, SPEED
from prepare.errors import ExitCode, PrepareError, ServingError


def run_screening(
    serving: Serving, baseline_bytes: int | None = None, *, ablate: bool = False
) -> ExitCode:
    """Return 0 if a variant was measured; raise the baseline's error."""
    plan = serving.state.plan
    stages = serving.stages
    log = serving.stages.log
    for spec in plan.shared.values():
        stages.run(spec)
    # The best of the screened may be gated next, so these are tried variants.
    screened = Counted(trial=plan.trial, gate="", run=plan.run)
    AttemptLedger(stages.store).begin(screened, kind="screen")
    found: list[ScreenedModel] = []
    for arm in (*plan.arms, *(find_parts(serving) if ablate else ())):
        name = arm.recipe.name
        is_made = "quantize" in arm.stages
        try:
            measured = measure(serving, arm)
        except PrepareError as error:
            if arm is plan.baseline:
                raise
            stages.progress.note(f"{name}: {error}")
            measured = ScreenedModel(name=name, reason=error.message)
        size = stages.weights_bytes(arm) if is_made else baseline_bytes
        changes = {"weights_bytes": size, "is_part": arm not in plan.arms}
        found.append(measured.model_copy(update=changes))
        log.update(screened=list(found))
    is_any = any(each.effect is not None for each in found[1:])
    return ExitCode.SUCCESS if is_any else ExitCode.EXPECTED_ERROR


def find_parts(serving: Serving) -> list[Arm]:
    """Return each variant with the baseline's KV cache, and the baseline with each other."""
    plan = serving.state.plan
    parts = {}
    (suite,) = plan.policy.suites
    for arm in plan.variants:
        before = kv_dtype(plan.baseline)
        after = kv_dtype(arm)
        if before == after:
            serving.stages.progress.note(
                f"{arm.recipe.name}: its KV cache is of the baseline's type, {after}, so all that "
                "it lost, it lost by its weights"
            )
            continue
        for origin, dtype in ((arm, before), (plan.baseline, after)):
            part = with_kv_dtype(origin, dtype, arm.stages[suite], suite)
            parts[part.recipe.name] = part
    return list(parts.values())


def measure(serving: Serving, arm: Arm) -> ScreenedModel:
    """Make, serve and ask one arm."""
    plan = serving.state.plan
    runner = serving.stages
    name = arm.recipe.name
    (suite,) = plan.policy.suites
    is_part = "sanity" not in arm.stages
    stages = arm.stages if is_part else screening_stages(plan, arm)
    needs = runner.needs_to_make(arm.making)
    with serving.node.take(needs, serving.tell_of_waiting):
        for spec in arm.making:
            runner.run(spec)
    served = {role: spec for role, spec in stages.items() if role not in MAKING}
    serving.hold(replace(arm, stages=served), list(served.values()))
    own = runner.answers(stages[suite])
    before = own if arm is plan.baseline else runner.answers(plan.baseline.stages[suite])
    check_paired(suite, before, own)
    is_same = [(a.score, a.nats) for a in own] == [(b.score, b.nats) for b in before]
    if is_part and is_same and kv_dtype(arm) != kv_dtype(plan.baseline):
        # Some engines' prefill does not read the cache (MLA).
        raise ServingError(
            "not measured: the engine reads a prompt without its KV cache", where=name
        )
    sides = [group_by_cluster(rows) for rows in (before, own)]
    scores, nats = ([means(each, key) for each in sides] for key in ("score", "nats"))
    rate = None
    if load := stages.get(f"{ROLE}screening"):
        rate = SPEED.parameters_of(load).rule.evaluate(runner.loads(load)).estimate
    return ScreenedModel(
        name=name,
        effect=measure_effect(scores, nats, plan.policy.alpha),
        output_tokens_per_s=rate,
        stages={role: spec.key for role, spec in stages.items()},
    )

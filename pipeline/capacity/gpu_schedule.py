"""Schedule of a run on requested GPUs, from checkpoint headers alone.

Neither the GPUs nor the weights need to exist, so nothing counts as done. Stages of seconds
without a GPU, and evaluation rounds that depend on answers, are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.capacity.gpu_plan import CapacityPlan
from pipeline.capacity.pending_work import PendingStage, Phase, expected_pieces
from pipeline.capacity.timeline import Timeline, play
from pipeline.core.resource_request import ResourceRequest
from pipeline.plan.resource_requests import needs_to_make
from recipes.catalog import BASELINE
from recipes.policy import Policy
from recipes.schema import Recipe


def schedule_on_gpus(
    plan: CapacityPlan,
    recipes: Sequence[Recipe],
    policy: Policy,
    *,
    dry_run: bool,
    apart: bool = False,
) -> Timeline | None:
    """Return the schedule of a run on the plan's GPUs, as one node.

    Each model takes :attr:`CapacityPlan.gpus_a_copy` GPUs, as in a run.

    Args:
        recipes: variants without those that only a failed recipe would start.
        dry_run: whether recipes with calibration are tried on two layers first.
        apart: whether each side has separate GPUs while its speed is measured.

    Returns:
        None if the baseline or every variant does not fit.
    """
    names = [BASELINE, *(recipe.name for recipe in recipes if recipe.name in plan.weights)]
    gpus = {name: plan.gpus_a_copy for name in names if plan.best(name)}
    served = [recipe for recipe in recipes if recipe.name in gpus]
    if BASELINE not in gpus or not served:
        return None
    stages = [_made(plan, "dry_run", r.name) for r in served if dry_run and _is_calibrated(r)]
    for recipe in served:
        stages += [_made(plan, stage, recipe.name) for stage in ("quantize", "check_weights")]
    for name in gpus:
        stages += _asked(plan, name, gpus, is_loaded=bool(policy.claims_on("cuda")), apart=apart)
    count_room = room_of(plan.site.gpus)
    pieces = expected_pieces(stages, count_room, lambda name: _seconds(plan, "serve", name))
    return play(pieces, count_room, plan.site.gpus)


def room_of(gpus: int) -> Callable[[ResourceRequest], int]:
    """Return a function that counts how many such requests fit on one node."""

    def count(needs: ResourceRequest) -> int:
        if needs.gpus > gpus:
            return 0
        return 1 if needs.exclusive else gpus // max(1, needs.gpus)

    return count


def _made(plan: CapacityPlan, stage: str, variant: str) -> PendingStage:
    memory = {(need.stage, need.variant): need.host_bytes or 0 for need in plan.needs}
    return PendingStage(
        _key(stage, variant),
        variant,
        stage,
        _seconds(plan, stage, variant),
        needs_to_make(stage, "cuda", memory.get((stage, variant), 0)),
        (_key("quantize", variant),) if stage == "check_weights" else (),
        Phase.TRIED if stage == "dry_run" else Phase.LATER,
    )


def _asked(
    plan: CapacityPlan,
    variant: str,
    gpus: Mapping[str, int],
    *,
    is_loaded: bool,
    apart: bool,
) -> Iterator[PendingStage]:
    """Yield the stages that query the variant's server; loads are a separate stage."""
    measure, room = _seconds(plan, "measure", variant), ResourceRequest(gpus=gpus[variant])
    before = (_key("check_weights", variant), _key("measure", BASELINE))
    key, asked = _key("measure", variant), "asked"
    if variant == BASELINE or not is_loaded:
        yield PendingStage(key, variant, "measure", measure, room, before, server_run=asked)
        return
    load = _seconds(plan, "speed", variant)
    # Both are medians of different runs, so `load` may exceed `measure`.
    rest = None if measure is None or load is None else max(0.0, measure - load)
    yield PendingStage(key, variant, "measure", rest, room, before, server_run=asked)
    sides = (gpus[variant], gpus[BASELINE])
    both = ResourceRequest(gpus=sum(sides) if apart else max(sides))
    before = (key, _key("measure", BASELINE))
    key = _key("speed", variant)
    yield PendingStage(key, variant, "speed", load, room, before, server_run=asked, under_load=both)


def _key(stage: str, variant: str) -> str:
    return f"{variant}: {stage}"


def _is_calibrated(recipe: Recipe) -> bool:
    return getattr(recipe.quantization, "calibration", None) is not None


def _seconds(plan: CapacityPlan, stage: str, variant: str) -> float | None:
    found = {(each.variant, each.stage): each.minutes for each in plan.minutes}
    minutes = found.get((variant, stage), plan.seen.minutes(stage, variant))
    return None if minutes is None else 60 * minutes

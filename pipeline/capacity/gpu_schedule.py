"""When a run's work would go on GPUs that are asked about, from headers alone.

Neither such a GPU nor a cluster has to be there, nor the weights; so there is no plan with stages
yet, and nothing counts as done. What takes seconds and no GPU, questions and verdicts, is left out,
as are rounds that the answers may call for.
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
    plan: CapacityPlan, recipes: Sequence[Recipe], policy: Policy, *, dry_run: bool
) -> Timeline | None:
    """The schedule of a run on the plan's GPUs, as those of one node.

    Each model is served on the fewest GPUs that are best for it (:meth:`CapacityPlan.best`).

    Args:
        recipes: of the variants that are tried at once.
        dry_run: whether those with calibration are tried on two layers first.

    Returns:
        None where the baseline, or none of the variants, can be served there.
    """
    names = [BASELINE, *(recipe.name for recipe in recipes if recipe.name in plan.weights)]
    gpus = {name: best.tensor_parallel for name in names if (best := plan.best(name))}
    served = [recipe for recipe in recipes if recipe.name in gpus]
    if BASELINE not in gpus or not served:
        return None
    stages = [_made(plan, "dry_run", r.name) for r in served if dry_run and _is_calibrated(r)]
    for recipe in served:
        stages += [_made(plan, stage, recipe.name) for stage in ("quantize", "check_weights")]
    for name in gpus:
        stages += _asked(plan, name, gpus, is_loaded=bool(policy.claims_on("cuda")))
    count_room = room_of(plan.site.gpus)
    pieces = expected_pieces(stages, count_room, lambda name: _seconds(plan, "serve", name))
    return play(pieces, count_room, plan.site.gpus)


def room_of(gpus: int) -> Callable[[ResourceRequest], int]:
    """How many such pieces of work fit on a node with so many GPUs."""

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
    plan: CapacityPlan, variant: str, gpus: Mapping[str, int], *, is_loaded: bool
) -> Iterator[PendingStage]:
    """Who asks the variant's server, with what loads it apart from the rest."""
    measure, room = _seconds(plan, "measure", variant), ResourceRequest(gpus=gpus[variant])
    before = (_key("check_weights", variant), _key("measure", BASELINE))
    key, asked = _key("measure", variant), "asked"
    if variant == BASELINE or not is_loaded:
        yield PendingStage(key, variant, "measure", measure, room, before, server_run=asked)
        return
    load = _seconds(plan, "speed", variant)
    # Medians of different runs: of some the part may be longer than all of most.
    rest = None if measure is None or load is None else max(0.0, measure - load)
    yield PendingStage(key, variant, "measure", rest, room, before, server_run=asked)
    both = ResourceRequest(gpus=max(gpus[variant], gpus[BASELINE]), exclusive=True)
    before = (key, _key("measure", BASELINE))
    key = _key("speed", variant)
    yield PendingStage(key, variant, "speed", load, room, before, server_run=asked, under_load=both)


def _key(stage: str, variant: str) -> str:
    return f"{variant}: {stage}"


def _is_calibrated(recipe: Recipe) -> bool:
    return getattr(recipe.quantization, "calibration", None) is not None


def _seconds(plan: CapacityPlan, stage: str, variant: str) -> float | None:
    """Seen here, or estimated."""
    found = {(each.variant, each.stage): each.minutes for each in plan.minutes}
    minutes = found.get((variant, stage), plan.seen.minutes(stage, variant))
    return None if minutes is None else 60 * minutes

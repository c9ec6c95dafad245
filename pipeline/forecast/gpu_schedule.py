"""When a run's work would go on GPUs that are asked about, from headers alone.

Neither such a GPU nor a cluster has to be there, nor the weights; so there is no plan with stages
yet, and nothing counts as done. The order and the room are those of `pipeline/run/expected_work.py`
(a test compares them). What takes seconds and no GPU, questions and verdicts, is left out, as are
rounds that the answers may call for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipeline.core.needs import Needs
from pipeline.forecast.gpu_plan import CapacityPlan
from pipeline.forecast.timeline import Piece, Timeline, play
from recipes import catalog
from recipes.policy import Policy
from recipes.schema import Recipe

BASELINE = f"{catalog.BASELINE}: asked"


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
    served = [recipe for recipe in recipes if recipe.name in plan.weights and _gpus(plan, recipe)]
    baseline = plan.best(catalog.BASELINE)
    if baseline is None or not served:
        return None
    tried = [recipe for recipe in served if dry_run and _is_calibrated(recipe)]
    pieces = [
        Piece(f"{recipe.name}: dry_run", Needs(gpus=1), _seconds(plan, "dry_run", recipe.name))
        for recipe in tried
    ]
    first = tuple(piece.name for piece in pieces)
    for recipe in served:
        pieces += _made(plan, recipe, first)
    asked = _sum(_seconds(plan, stage, catalog.BASELINE) for stage in ("serve", "measure"))
    pieces.append(Piece(BASELINE, Needs(gpus=baseline.tensor_parallel), asked, first))
    count_room = room_of(plan.site.gpus)
    for recipe in served:
        gpus = max(_gpus(plan, recipe), baseline.tensor_parallel)
        loads = Needs(gpus=gpus, exclusive=True) if policy.claims_on("cuda") else None
        pieces += _asked(plan, recipe, loads, first, count_room)
    return play(pieces, count_room, plan.site.gpus)


def room_of(gpus: int) -> Callable[[Needs], int]:
    """How many such pieces of work fit on a node with so many GPUs."""

    def count(needs: Needs) -> int:
        if needs.gpus > gpus:
            return 0
        return 1 if needs.exclusive else gpus // max(1, needs.gpus)

    return count


def _made(plan: CapacityPlan, recipe: Recipe, first: tuple[str, ...]) -> Iterator[Piece]:
    memory = {
        need.stage: need.host_bytes or 0 for need in plan.needs if need.variant == recipe.name
    }
    made = f"{recipe.name}: quantize"
    needs = Needs(gpus=1, memory_bytes=memory.get("quantize", 0))
    yield Piece(made, needs, _seconds(plan, "quantize", recipe.name), first)
    seconds = _seconds(plan, "check_weights", recipe.name)
    needs = Needs(memory_bytes=memory.get("check_weights", 0))
    yield Piece(f"{recipe.name}: check_weights", needs, seconds, (made, *first))


def _asked(
    plan: CapacityPlan,
    recipe: Recipe,
    loads: Needs | None,
    first: tuple[str, ...],
    count_room: Callable[[Needs], int],
) -> Iterator[Piece]:
    """A server with all who ask it; under load apart, where several could be asked at once."""
    name, shared = recipe.name, Needs(gpus=_gpus(plan, recipe))
    start, measure = (_seconds(plan, stage, name) for stage in ("serve", "measure"))
    load = _seconds(plan, "speed", name)
    asked, others = f"{name}: asked", (BASELINE, *first)
    after = (f"{name}: check_weights", *others)
    if loads is None or count_room(shared) <= 1:
        yield Piece(asked, loads or shared, _sum([start, measure]), after)
        return
    # Medians of different runs: of some the part may be longer than all of most.
    unloaded = None if measure is None or load is None else max(0.0, measure - load)
    yield Piece(asked, shared, _sum([start, unloaded]), after)
    yield Piece(f"{name}: loads", loads, _sum([start, load]), (asked, *others))


def _gpus(plan: CapacityPlan, recipe: Recipe) -> int:
    """GPUs that one copy is best served on; 0 where it cannot be."""
    best = plan.best(recipe.name)
    return best.tensor_parallel if best else 0


def _is_calibrated(recipe: Recipe) -> bool:
    return getattr(recipe.quantization, "calibration", None) is not None


def _seconds(plan: CapacityPlan, stage: str, variant: str) -> float | None:
    """Seen here, or estimated."""
    found = {(each.variant, each.stage): each.minutes for each in plan.minutes}
    minutes = found.get((variant, stage), plan.seen.minutes(stage, variant))
    return None if minutes is None else 60 * minutes


def _sum(seconds: Iterator[float | None] | Sequence[float | None]) -> float | None:
    known = list(seconds)
    return None if None in known else sum(each for each in known if each is not None)

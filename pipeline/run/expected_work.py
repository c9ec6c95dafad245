"""The pieces of work that a plan comes to, as a run would make them, for the forecast.

The rules are those of `runner.py` and `asking.py`: shared stages first, then trials on two layers,
then weights; a model's server and all who ask it are one piece, the baseline's before the others';
loads are a piece of their own where several models could be asked side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from artifacts.stages.dry_run import DRY_RUN
from artifacts.stages.quantize import QUANTIZE
from artifacts.stages.speed import SPEED
from pipeline.core.needs import Needs
from pipeline.core.stage_record import StageSpec
from pipeline.forecast.timeline import Piece
from pipeline.plan.plan import Find, Plan, VariantPlan
from pipeline.run.serving_needs import needs_to_serve

SHARED, TRIED, MADE = range(3)  # what all later ones wait for, but what is made


@dataclass(frozen=True)
class ExpectedStage:
    """A stage that is still to run."""

    spec: StageSpec
    name: str  # as people are told it
    seconds: float | None
    is_served: bool  # whether a server has to come up for it


@dataclass(frozen=True)
class _Group:
    name: str
    stages: tuple[ExpectedStage, ...]
    needs: Needs
    seconds: float | None


class ExpectedWork:
    """Puts the stages of a plan together to pieces of work.

    Args:
        count_room: how many such pieces fit side by side.
        memory: bytes that making a variant takes, by stage and recipe, where they are known.
        start_seconds: that a server takes to start; None where it is not known.
        find: the record of a finished stage.
    """

    def __init__(
        self,
        plan: Plan,
        count_room: Callable[[Needs], int],
        start_seconds: float | None,
        find: Find,
        memory: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._memory = memory or {}
        self._plan = plan
        self._count_room = count_room
        self._start_seconds = start_seconds
        self._first = {
            spec.key
            for variant in (plan.baseline, *plan.variants)
            for spec in plan.served_stages(variant, find)
        }

    def pieces(self, stages: Sequence[ExpectedStage]) -> list[Piece]:
        """What is more urgent first: making, and asking the variants before the baseline again."""
        groups = list(self._groups(stages))
        shared = [g.name for g in groups if self._is_shared(g)]
        tried = [g.name for g in groups if g.stages[0].spec.stage == DRY_RUN.name]
        made_by = {each.spec.key: g.name for g in groups for each in g.stages}
        found = []
        for group in groups:
            after = [
                made_by[reference.key]
                for each in group.stages
                for reference in each.spec.inputs.values()
                if made_by.get(reference.key, group.name) != group.name
            ]
            if group.name not in shared:
                after += shared
                after += [] if group.name in tried else tried
            found.append(
                Piece(
                    group.name,
                    group.needs,
                    group.seconds,
                    tuple(dict.fromkeys(after)),
                    tuple(each.name for each in group.stages) if len(group.stages) > 1 else (),
                )
            )
        return found

    def _groups(self, stages: Sequence[ExpectedStage]) -> Iterator[_Group]:
        sitting: dict[tuple[str, bool, bool], list[ExpectedStage]] = {}
        for each in stages:
            if not each.is_served:
                name = f"{each.spec.variant}: {each.name}"
                yield _Group(name, (each,), self._making(each.spec), each.seconds)
                continue
            is_load = each.spec.stage == SPEED.name and self._is_apart(each.spec)
            is_first = each.spec.key in self._first
            sitting.setdefault((each.spec.variant, is_first, is_load), []).append(each)
        for (variant, is_first, is_load), served in sitting.items():
            what = "loads" if is_load else "asked" if is_first else "asked again"
            yield _Group(
                f"{variant}: {what}",
                tuple(served),
                self._asking(served),
                _sum([self._start_seconds, *(each.seconds for each in served)]),
            )

    def _is_shared(self, group: _Group) -> bool:
        shared = {spec.key for spec in self._plan.shared.values()}
        return group.stages[0].spec.key in shared

    def _making(self, spec: StageSpec) -> Needs:
        memory = self._memory.get((spec.stage, spec.variant), 0)
        return needs_to_make(spec.stage, self._plan.accelerator, memory)

    def _is_apart(self, spec: StageSpec) -> bool:
        return self._count_room(self._room(spec.variant, is_load=False)) > 1

    def _asking(self, served: Iterable[ExpectedStage]) -> Needs:
        specs = [each.spec for each in served]
        return self._room(specs[0].variant, is_load=any(s.stage == SPEED.name for s in specs))

    def _room(self, name: str, *, is_load: bool) -> Needs:
        """For the variant's server, and under load for the baseline's in its turn."""
        sides = [self._variant(name).arguments]
        sides += [self._plan.baseline.arguments] if is_load else []
        ours = [side for side in sides if side is not None]
        if not ours:
            return Needs(exclusive=is_load)
        return needs_to_serve(self._plan.accelerator, ours, exclusive=is_load)

    def _variant(self, name: str) -> VariantPlan:
        sides = (self._plan.baseline, *self._plan.variants)
        return next(each for each in sides if each.recipe.name == name)


def needs_to_make(stage: str, accelerator: str, memory_bytes: int = 0) -> Needs:
    """Room for a stage that asks no model."""
    if stage not in (QUANTIZE.name, DRY_RUN.name):
        return Needs(memory_bytes=memory_bytes)
    if accelerator == "cuda":
        return Needs(gpus=1, memory_bytes=memory_bytes)
    return Needs(cpus="all", memory_bytes=memory_bytes)


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None

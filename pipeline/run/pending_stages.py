"""A plan's unfinished stages, in the form of the simulated schedule."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.capacity.pending_work import PendingStage, Phase
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.plan.plan import Find, Plan
from pipeline.plan.resource_requests import needs_to_make, needs_to_serve
from pipeline.stages.dry_run import DRY_RUN
from pipeline.stages.speed import SPEED


class PendingStages:
    """Those of one plan."""

    def __init__(self, plan: Plan, find: Find, memory: Mapping[tuple[str, str], int]) -> None:
        self._plan = plan
        self._memory = memory
        sides = (plan.baseline, *plan.variants)
        self._arguments = {each.recipe.name: each.arguments for each in sides}
        self._shared = {spec.key for spec in plan.shared.values()}
        self._first = {spec.key for each in sides for spec in plan.served_stages(each, find)}

    def expect(
        self, spec: StageSpec, name: str, seconds: float | None, *, is_served: bool
    ) -> PendingStage:
        server_run = ("asked" if spec.key in self._first else "asked again") * is_served
        return PendingStage(
            spec.key,
            spec.variant,
            name,
            seconds,
            self._serving(spec.variant) if is_served else self._making(spec),
            tuple(each.key for each in spec.inputs.values()),
            self._turn(spec),
            server_run,
            self._under_load(spec) if is_served and spec.stage == SPEED.name else None,
        )

    def _turn(self, spec: StageSpec) -> Phase:
        if spec.key in self._shared:
            return Phase.SHARED
        return Phase.TRIED if spec.stage == DRY_RUN.name else Phase.LATER

    def _making(self, spec: StageSpec) -> ResourceRequest:
        memory = self._memory.get((spec.stage, spec.variant), 0)
        return needs_to_make(spec.stage, self._plan.accelerator, memory)

    def _under_load(self, spec: StageSpec) -> ResourceRequest:
        """Return the resources of both sides' servers."""
        names = (spec.variant, self._plan.baseline.recipe.name)
        return self._serving(*names, apart=SPEED.parameters_of(spec).is_apart)

    def _serving(self, *names: str, apart: bool = False) -> ResourceRequest:
        """Return the resources of the variant's server, and of the baseline's under load."""
        is_load = len(names) > 1
        ours = [side for name in names if (side := self._arguments[name]) is not None]
        if not ours:  # another process serves them
            return ResourceRequest(exclusive=is_load)
        return needs_to_serve(self._plan.accelerator, ours, exclusive=is_load, apart=apart)

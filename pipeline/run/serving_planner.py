"""Plans the serving tasks of a plan's models, and their resources."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.core.errors import PrepareError, ServingError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.plan.resource_requests import needs_to_serve
from pipeline.run.scheduler import ScheduledWork, Scheduler
from pipeline.run.serving_task import ServingTask, needs_endpoint
from pipeline.run.stage_runner import SubmittedStageRunner
from pipeline.stages.screen import SCREEN
from pipeline.stages.speed import SPEED


class IncoherentModelError(ServingError):
    """A broken served model: a verdict for a variant, an error for a baseline."""


class ServingPlanner:
    """The serving tasks of one plan."""

    def __init__(self, plan: Plan, stages: SubmittedStageRunner) -> None:
        self._plan = plan
        self._stages = stages

    def find_undone(self, specs: Sequence[StageSpec]) -> list[StageSpec]:
        """Return stages from the first unfinished one on.

        Its result decides whether later ones must run.
        """
        for place, spec in enumerate(specs):
            if self._stages.reuse(spec) is None:
                return list(specs[place:])
        return []

    def lay_out(self, variant: VariantPlan, specs: Sequence[StageSpec]) -> ScheduledWork:
        """Return the work in which the variant runs these stages.

        If several could run concurrently, loads have a separate serving task, after the others,
        where nothing may run next to them, or they need more GPUs.
        """
        needs = self._needs(variant, specs)
        rest = [spec for spec in specs if not self._takes_more(variant, spec)]
        if 0 < len(rest) < len(specs):
            shared = self._needs(variant, rest)
            if self._stages.executor.count_room(shared) > 1:
                specs, needs = rest, shared
        name = f"{variant.recipe.name}.serving_task.{specs[-1].key[:8]}"
        return ScheduledWork(name, lambda: self._serving_task(variant, specs), needs, variant)

    def hold(self, variant: VariantPlan, specs: Sequence[StageSpec]) -> None:
        """Run these stages of the variant as far as unfinished, and wait for the end.

        Raises:
            IncoherentModelError: the model is broken.
            PrepareError: a server did not start or died, or a stage failed.
        """

        def find_work(running: Collection[ScheduledWork]) -> list[ScheduledWork]:
            self.check_coherent(variant)
            undone = self.find_undone(specs)
            return [self.lay_out(variant, undone)] if undone and not running else []

        Scheduler(self._stages).run(find_work, raise_failure)

    def check_coherent(self, variant: VariantPlan) -> None:
        """Raise IncoherentModelError if the model was checked and is broken."""
        spec = variant.stages.get(SCREEN.name)
        record = self._stages.find_reusable(spec) if spec is not None else None
        if record is not None and (why := SCREEN.result_of(record).broken):
            raise IncoherentModelError(why)

    def _serving_task(self, variant: VariantPlan, specs: Sequence[StageSpec]) -> ServingTask:
        blocking = [
            variant.stages[suite].key
            for suite, policy in self._plan.policy.suites.items()
            if policy.tier != "advisory" and suite in variant.stages
        ]
        return ServingTask(
            store=str(self._stages.store.root),
            accelerator=self._stages.accelerator,
            folder=str(self._stages.log.folder),
            model=variant.to_serve,
            baseline=self._plan.baseline.to_serve,
            specs=list(specs),
            blocking=blocking,
        )

    def _takes_more(self, variant: VariantPlan, spec: StageSpec) -> bool:
        """Return whether it measures speed with more than one server's share of a node."""
        if spec.stage != SPEED.name or variant.arguments is None:
            return False
        own = self._needs(variant, [spec])
        one = needs_to_serve(self._stages.accelerator, [variant.arguments])
        return own.exclusive or own.gpus > one.gpus

    def _needs(self, variant: VariantPlan, specs: Sequence[StageSpec]) -> ResourceRequest:
        store = self._stages.store
        asked = [spec for spec in specs if needs_endpoint(spec, store)]
        if not asked or variant.arguments is None:
            return ResourceRequest()
        exclusive = any(spec.stage == SPEED.name for spec in asked)
        sides = [variant.arguments]
        if exclusive and self._plan.baseline.arguments is not None:
            sides.append(self._plan.baseline.arguments)
        return needs_to_serve(self._stages.accelerator, sides, exclusive=exclusive)


def raise_failure(work: ScheduledWork, error: PrepareError | None) -> None:
    """Raise a failure of work without which the run cannot continue."""
    if error is not None:
        raise error

"""Runs a plan up to its verdicts: quantizes the variants, asks questions, judges.

The next work follows from the plan and the store; `Scheduler` runs it, concurrently if resources
allow. Variants answer round by round, until every gate is decided or exhausted. The baseline
answers first, since a variant stops against its answers. A gate that stays open gets another round,
with twice the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from artifacts.run_record import report_judged, report_unjudged
from eval_gates.suites.suite_kind import kind_of
from pipeline.core.errors import PrepareError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.plan.independence import check_laid_out
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.plan.power import check_counted
from pipeline.plan.resource_requests import needs_to_make
from pipeline.run.run_recorder import RunRecorder
from pipeline.run.scheduler import ScheduledWork, Scheduler
from pipeline.run.serving_planner import IncoherentModelError, ServingPlanner, raise_failure
from pipeline.run.stage_runner import SubmittedStageRunner, name_of
from pipeline.stages.judge import JUDGE
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.questions import QUESTIONS, QuestionsResult

LITTLE = ResourceRequest()
LaidOut = Mapping[str, QuestionsResult]
"""By suite, the result of its stage `questions`."""


class Runner:
    """Runs one plan.

    Args:
        memory: bytes that making a variant takes, by stage and recipe, if known.
        check_laid_out: receives the questions' results, by suite, before the first question; may
            raise a PrepareError.
    """

    def __init__(
        self,
        plan: Plan,
        stages: SubmittedStageRunner,
        log: RunRecorder,
        memory: Mapping[tuple[str, str], int] | None = None,
        check_laid_out: Callable[[LaidOut], None] = lambda laid_out: None,
    ) -> None:
        self._check_others = check_laid_out
        self._memory = memory or {}
        self._plan = plan
        self._stages = stages
        self._log = log
        self._asking = ServingPlanner(plan, stages)
        self._going = list(plan.variants)

    def run(self) -> None:
        """Run every stage up to the verdicts; a variant's failure does not stop the others.

        If resources do not suffice for all, variants are quantized and verified first, then
        measured: what can fail early should not fail after an hour of other work.

        Raises:
            PrepareError: the baseline or something that all variants share failed.
        """
        if self._plan.trial is not None:
            self._log.note_counted(sorted(self._plan.trial.variants))
        schedule = Scheduler(self._stages)
        self._check_sandbox()
        schedule.run(self._find_shared, raise_failure)
        self._check_laid_out()
        schedule.run(self._find_work, self._end)

    def _check_sandbox(self) -> None:
        """Refuse model-written code now if it cannot be isolated.

        It is unknown here for a cluster's nodes; there the stage itself refuses.

        Raises:
            SandboxError: no isolation satisfies the policy.
        """
        plan = self._plan
        if not self._stages.executor.has_our_environments:
            return
        for name, suite in plan.policy.suites.items():
            if not all(
                self._stages.find_reusable(side.stages[name])
                for side in (plan.baseline, *plan.variants)
            ):
                kind_of(suite).check_machine(suite)

    def _check_laid_out(self) -> None:
        """Refuse questions that show too little or count twice, and what the caller refuses.

        Raises:
            PrepareError: the questions must not be used.
        """
        stages = {
            name: self._plan.shared.get(f"questions.{name}") for name in self._plan.policy.suites
        }
        found = {name: self._stages.find_reusable(spec) for name, spec in stages.items() if spec}
        laid_out = {name: QUESTIONS.result_of(record) for name, record in found.items() if record}
        check_laid_out(self._plan.policy, laid_out, self._stages.progress)
        recipes = [variant.recipe for variant in self._plan.variants]
        check_counted(self._plan.policy, recipes, laid_out, self._stages.progress)
        self._check_others(laid_out)

    # --- what is to be done -------------------------------------------------------------------

    def _find_shared(self, running: Collection[ScheduledWork]) -> list[ScheduledWork]:
        return [
            self._stage(spec, None)
            for spec in self._plan.shared.values()
            if self._stages.reuse(spec) is None
        ]

    def _find_work(self, running: Collection[ScheduledWork]) -> list[ScheduledWork]:
        """Return all work that can start."""
        self._drop_incoherent()
        return [
            *self._find_making(),
            *self._find_verdicts(),
            *self._find_serving_tasks(running),
        ]

    def _find_making(self) -> Iterator[ScheduledWork]:
        for variant in self._going:
            if undone := self._unmade(variant):
                yield self._stage(undone, variant, self._needs_to_make(undone))

    def _find_verdicts(self) -> Iterator[ScheduledWork]:
        for variant in list(self._going):
            if self._is_asked(variant):
                spec = self._judge_stage(variant)
                if self._stages.reuse(spec) is None:
                    yield self._stage(spec, variant)
                else:
                    self._note_verdict(variant)

    def _find_serving_tasks(self, running: Collection[ScheduledWork]) -> Iterator[ScheduledWork]:
        """Yield the baseline's, then the variants'."""
        asked = {work.variant.recipe.name for work in running if work.variant}
        waiting = [v for v in self._going if not self._unmade(v)]
        if first := self._undone_of(self._plan.baseline):
            if self._going and self._plan.baseline.recipe.name not in asked:
                yield self._asking.lay_out(self._plan.baseline, first)
            return
        for variant in waiting:
            if variant.recipe.name not in asked and (specs := self._undone_of(variant)):
                yield self._asking.lay_out(variant, specs)

    def _undone_of(self, variant: VariantPlan) -> list[StageSpec]:
        return self._asking.find_undone(
            self._plan.served_stages(variant, self._stages.find_reusable)
        )

    def _unmade(self, variant: VariantPlan) -> StageSpec | None:
        made = (variant.stages.get(role) for role in ("quantize", "check_weights"))
        return next((s for s in made if s is not None and self._stages.reuse(s) is None), None)

    def _is_asked(self, variant: VariantPlan) -> bool:
        return not (
            self._unmade(variant)
            or self._undone_of(self._plan.baseline)
            or self._undone_of(variant)
        )

    def _judge_stage(self, variant: VariantPlan) -> StageSpec:
        return self._plan.judge_stage(variant, self._stages.find_reusable)

    def _stage(
        self, spec: StageSpec, variant: VariantPlan | None, needs: ResourceRequest = LITTLE
    ) -> ScheduledWork:
        return ScheduledWork(
            name_of(spec), lambda: self._stages.add_runtime(spec, {}), needs, variant
        )

    def _needs_to_make(self, spec: StageSpec) -> ResourceRequest:
        memory = self._memory.get((spec.stage, spec.variant), 0)
        return needs_to_make(spec.stage, self._stages.accelerator, memory)

    # --- what came of it ----------------------------------------------------------------------

    def _end(self, work: ScheduledWork, error: PrepareError | None) -> None:
        """Add a failure to the variant's report; the baseline's failure ends the run."""
        if error is None:
            return
        if work.variant is None or work.variant is self._plan.baseline:
            raise error
        self._give_up(work.variant, error)

    def _drop_incoherent(self) -> None:
        """Stop asking a broken variant.

        Raises:
            IncoherentModelError: the baseline is broken.
        """
        self._asking.check_coherent(self._plan.baseline)
        for variant in [each for each in self._going if not self._unmade(each)]:
            try:
                self._asking.check_coherent(variant)
            except IncoherentModelError as error:
                self._give_up(variant, error)

    def _give_up(self, variant: VariantPlan, failure: PrepareError) -> None:
        name = variant.recipe.name
        is_verdict = isinstance(failure, IncoherentModelError)
        if not is_verdict:
            self._stages.progress.note(f"{name}: {failure}")
        self._going.remove(variant)
        self._log.note_variant(
            report_unjudged(
                name, "fail" if is_verdict else "error", str(failure), self._weights(variant)
            )
        )

    def _note_verdict(self, variant: VariantPlan) -> None:
        self._going.remove(variant)
        found = JUDGE.result_of(self._stages.find_finished(self._judge_stage(variant)))
        self._log.note_variant(report_judged(variant.recipe.name, self._weights(variant), found))

    def _weights(self, variant: VariantPlan) -> int | None:
        spec = variant.stages.get("quantize")
        record = self._stages.store.find(spec.stage, spec.key) if spec else None
        return QUANTIZE.result_of(record).weights_bytes if record else None

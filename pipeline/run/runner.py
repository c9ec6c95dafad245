"""Runs a plan up to its verdicts: makes the variants, measures them, judges each and all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from artifacts.run_record import VariantReport, report_judged, report_unjudged
from artifacts.selection import correct
from artifacts.stages.judge import JUDGE
from artifacts.stages.quantize import QUANTIZE
from artifacts.stages.questions import QUESTIONS
from artifacts.stages.speed import SPEED
from eval_gates.sandbox import choose_isolation
from pipeline.core.errors import PrepareError
from pipeline.plan.independence import check_laid_out
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.run.endpoints import Endpoints
from pipeline.run.measurement import IncoherentModelError, Measurement
from pipeline.run.stage_runner import StageRunner
from recipes.policy import CodeSuite


class Runner:
    """Runs one plan."""

    def __init__(self, plan: Plan, stages: StageRunner, endpoints: Endpoints) -> None:
        self._plan = plan
        self._stages = stages
        self._endpoints = endpoints
        self._log = stages.log
        self._measurement = Measurement(plan, stages, endpoints)

    def run(self) -> None:
        """Run every stage up to the verdicts; a variant that fails does not stop the others.

        All variants are tried on two layers first, then quantized and verified: what can fail in
        minutes should not fail after an hour of quantizing another, or of measuring the baseline.
        Only a ladder's later rungs wait for the verdicts on those before.

        Raises:
            PrepareError: the baseline or something that all variants share failed.
        """
        try:
            self._check_sandbox()
            for spec in self._plan.shared.values():
                self._stages.run(spec)
            self._check_independence()
            self._prove(self._plan.tried_at_once)
            for rung in self._plan.later_rungs:
                self._climb(rung)
            self._select()
        finally:
            self._stages.cancel()
            self._endpoints.close()

    def _check_sandbox(self) -> None:
        """Where code is still to be run, refuse now what would be refused after an hour.

        Raises:
            SandboxError: nothing here can keep model-written code in as the policy wants.
        """
        plan = self._plan
        for name, suite in plan.policy.suites.items():
            if isinstance(suite, CodeSuite) and not all(
                self._stages.find_reusable(side.stages[name])
                for side in (plan.baseline, *plan.variants)
            ):
                choose_isolation(suite.sandbox)

    def _check_independence(self) -> None:
        """See that questions about one text are not taken for several; raises UsageError."""
        stages = {
            name: self._plan.shared.get(f"questions.{name}") for name in self._plan.policy.suites
        }
        found = {name: self._stages.find_reusable(spec) for name, spec in stages.items() if spec}
        laid_out = {name: QUESTIONS.result_of(record) for name, record in found.items() if record}
        check_laid_out(self._plan.policy, laid_out, self._stages.progress)

    def _prove(self, variants: Sequence[VariantPlan]) -> None:
        """Make the variants, measure them and judge each alone."""
        tried = [variant for variant in variants if self._try(variant, self._dry_run)]
        sound = [variant for variant in tried if self._try(variant, self._make)]
        if sound:
            self._measure(sound)

    def _climb(self, rung: VariantPlan) -> None:
        """Try the next rung of the ladder, unless one before it has passed."""
        name = rung.recipe.name
        before = self._passing_rung()
        if before is None:
            self._stages.progress.note(f"{name}: no rung of the ladder has passed; trying this one")
            self._prove([rung])
        else:
            self._log.note_variant(
                report_unjudged(name, "skipped", f"not needed: {before} passed", None)
            )

    def _passing_rung(self) -> str | None:
        """The first rung that passes, with every rung counted: also those that may never be tried.

        How many are tried hangs on the verdicts, so counting only those tried would not be fair.
        """
        reports = self._reports()
        changed = {r.recipe for r in self._correct(reports)}
        passed = {r.recipe for r in reports if r.verdict == "pass"} - changed
        return next((name for name in self._plan.rungs if name in passed), None)

    def _reports(self) -> list[VariantReport]:
        """One for every variant of the plan; of one that is not judged, that it is not."""
        judged = {report.recipe: report for report in self._log.variants()}
        names = [variant.recipe.name for variant in self._plan.variants]
        return [judged.get(n) or report_unjudged(n, "skipped", "not tried", None) for n in names]

    def _try(self, variant: VariantPlan, work: Callable[[VariantPlan], None]) -> bool:
        """Do the work; a failure becomes the variant's report."""
        try:
            work(variant)
        except IncoherentModelError as error:
            report = report_unjudged(
                variant.recipe.name, "fail", str(error), self._weights(variant)
            )
        except PrepareError as error:
            self._stages.progress.note(f"{variant.recipe.name}: {error}")
            report = report_unjudged(
                variant.recipe.name, "error", str(error), self._weights(variant)
            )
        else:
            return True
        self._log.note_variant(report)
        return False

    def _dry_run(self, variant: VariantPlan) -> None:
        if variant.wants_dry_run(self._stages.find_reusable):
            self._stages.run(variant.stages["dry_run"])

    def _make(self, variant: VariantPlan) -> None:
        for role in ("quantize", "check_weights"):
            if role in variant.stages:
                self._stages.run(variant.stages[role])

    def _measure(self, variants: list[VariantPlan]) -> None:
        """First rounds, then more for what is open; each verdict as soon as it is known."""
        holding: AbstractContextManager[None] = nullcontext()
        if self._compares_speed(variants):  # the baseline's server stays up beside each variant's
            holding = self._endpoints.hold_machine()
        with holding:
            self._ask(variants)

    def _ask(self, variants: list[VariantPlan]) -> None:
        measurement = self._measurement
        measurement.first_round(self._plan.baseline)
        going = []
        for variant in variants:
            if self._try(variant, measurement.first_round):
                going.append(variant)
        while going:
            for variant in [v for v in going if not measurement.open_suites(v)]:
                going.remove(variant)
                self._try(variant, self._judge)
            if going:
                measurement.baseline_round(going)
                going = [v for v in going if self._try(v, measurement.next_round)]

    def _compares_speed(self, variants: list[VariantPlan]) -> bool:
        """Whether a claim on speed is still to be measured on both sides at once."""
        return any(
            "baseline" in SPEED.parameters_of(spec).sides
            and not SPEED.parameters_of(spec).alternates
            and not self._stages.is_reusable(spec)
            for variant in variants
            for spec in self._plan.speed_stages(variant, self._stages.find_reusable).values()
        )

    def _judge(self, variant: VariantPlan) -> None:
        last = self._plan.last_rounds(variant, self._stages.find_reusable)
        judged = self._stages.run(self._plan.judge_stage(variant, last, self._stages.find_reusable))
        found = JUDGE.result_of(judged)
        self._log.note_variant(report_judged(variant.recipe.name, self._weights(variant), found))

    def _select(self) -> None:
        """Of several variants that pass alone, those that pass together."""
        for report in self._correct(self._reports()):
            self._log.note_variant(report)

    def _correct(self, reports: list[VariantReport]) -> list[VariantReport]:
        """With those counted that this run does not try again."""
        names = {report.recipe for report in reports}
        others = [
            report_unjudged(name, "skipped", "tried before", None)
            for name in self._plan.counted
            if name not in names
        ]
        return correct([*reports, *others], self._plan.alpha)

    def _weights(self, variant: VariantPlan) -> int | None:
        spec = variant.stages.get("quantize")
        record = self._stages.store.find(spec.stage, spec.key) if spec else None
        return QUANTIZE.result_of(record).weights_bytes if record else None

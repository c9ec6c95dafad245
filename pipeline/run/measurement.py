"""Asks baseline and variants in turn, round by round, until every gate is decided or exhausted.

The baseline goes first, since a variant stops against its answers. Gates that a round leaves open
get another one, with twice the questions: the baseline's server comes up again, then each open
variant's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from artifacts.stages.coherence import COHERENCE
from artifacts.stages.speed import SPEED
from pipeline.core.errors import PrepareError, ServingError
from pipeline.core.stage_record import StageSpec
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.run.endpoints import Endpoints
from pipeline.run.stage_runner import StageRunner
from pipeline.stages.evaluate import is_answered
from pipeline.stages.speed import course_of


class IncoherentModelError(ServingError):
    """A served model that does not speak: of a variant a verdict, of a baseline an error."""


class Measurement:
    """Measures the variants of one plan."""

    def __init__(self, plan: Plan, stages: StageRunner, endpoints: Endpoints) -> None:
        self._plan = plan
        self._stages = stages
        self._endpoints = endpoints

    def first_round(self, variant: VariantPlan) -> None:
        """All that the first life of the variant's server answers.

        Raises:
            IncoherentModelError: the model does not speak; nothing more is asked of it.
        """
        self._measure(variant, self._plan.served_stages(variant, self._stages.find_reusable))

    def open_suites(self, variant: VariantPlan) -> dict[str, int]:
        """Suites that another round could decide, with that round's number.

        None once a gate has failed that blocks: more answers would not save the variant.
        """
        return {
            suite: variant.rounds[suite].index(spec)
            for suite, spec in self._plan.last_rounds(variant, self._stages.find_reusable).items()
            if self._stages.find_reusable(spec) is None
        }

    def baseline_round(self, variants: Sequence[VariantPlan]) -> None:
        """Ask the baseline what the open suites of these variants call for next."""
        wanted = {
            (suite, number)
            for variant in variants
            for suite, number in self.open_suites(variant).items()
        }
        names = ", ".join(sorted({suite for suite, _ in wanted}))
        self._stages.progress.note(f"still open: {names}; another round with more questions")
        baseline = self._plan.baseline
        self._measure(baseline, [baseline.rounds[suite][n] for suite, n in sorted(wanted)])

    def next_round(self, variant: VariantPlan) -> None:
        """Ask the variant's open suites; the baseline has been asked before."""
        open_now = self.open_suites(variant)
        self._measure(variant, [variant.rounds[suite][n] for suite, n in open_now.items()])

    def ask(self, served: VariantPlan, specs: list[StageSpec]) -> None:
        """Ask a model these rounds of questions, in one life of its server."""
        self._measure(served, specs)

    def _measure(self, variant: VariantPlan, specs: list[StageSpec]) -> None:
        """Run the stages on one life of the variant's endpoint; none opens if all are done."""
        if all(self._stages.is_reusable(spec) or self._is_answered(spec) for spec in specs):
            context: AbstractContextManager[None] = nullcontext()
        else:
            context = self._endpoints.hold_machine()
        with context:
            for spec in specs:
                if not self._is_spared(variant, spec):
                    self._run(variant, spec)

    def _is_spared(self, variant: VariantPlan, spec: StageSpec) -> bool:
        """Whether it is a load on a variant that a suite before has failed."""
        wanted = self._plan.speed_stages(variant, self._stages.find_reusable).values()
        return spec.stage == SPEED.name and spec not in wanted

    def _run(self, variant: VariantPlan, spec: StageSpec) -> None:
        needs_endpoint = not self._is_answered(spec)
        try:
            record = self._stages.run(
                spec, (lambda: self._open(variant, spec)) if needs_endpoint else None
            )
        except PrepareError:
            self._endpoints.check_alive()  # a dead server is the better explanation
            raise
        if needs_endpoint:
            self._endpoints.check_alive()  # else something else may have answered
        if alternates(spec):
            self._endpoints.close()
        if spec.stage == COHERENCE.name and (why := COHERENCE.result_of(record).incoherent):
            raise IncoherentModelError(why)

    def _open(self, variant: VariantPlan, spec: StageSpec) -> dict[str, Any]:
        """What the stage must know of whom it asks; of speed, more than one may be up at once."""
        if spec.stage != SPEED.name:
            return self._endpoints.open_variant(variant)
        sides = {"baseline": self._plan.baseline, "candidate": variant}
        wanted: Iterable[str] = SPEED.parameters_of(spec).sides
        if alternates(spec):
            self._endpoints.check_alive()
            self._endpoints.close()
            wanted = course_of(spec, self._stages.store).next_sides()
        return {"endpoints": {name: self._endpoints.open_variant(sides[name]) for name in wanted}}

    def _is_answered(self, spec: StageSpec) -> bool:
        """Whether the answers that are kept suffice: a changed policy may need no server."""
        if spec.stage != "evaluate":
            return False
        before = (spec.inputs[role] for role in ("questions", "baseline") if role in spec.inputs)
        if any(self._stages.store.find(each.stage, each.key) is None for each in before):
            return False
        return is_answered(spec, self._stages.store)


def alternates(spec: StageSpec) -> bool:
    """Whether each side of the stage is served in turn, on lives of its own."""
    return spec.stage == SPEED.name and SPEED.parameters_of(spec).alternates

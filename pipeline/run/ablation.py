"""`--ablate`: separates a variant's loss into that of its weights and that of its KV cache.

Two more served models read the conversations of the policy's suites of kind `fidelity`: the
variant's weights with the baseline's KV cache, and the reverse. Their answers go into answer logs.
No verdict changes, and no attempt is counted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.run_record import VariantReport
from eval_gates.answer_log import read_answers
from eval_gates.attribution import AttributionReport, attribute
from pipeline.core.errors import EvaluationDataError, PrepareError
from pipeline.core.stage_record import StageReference, StageSpec
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.run.recorder import RunRecorder
from pipeline.run.serving import Serving
from pipeline.run.stage_run import StageRunner
from pipeline.stages.evaluate import EVALUATE
from recipes.engines.engine import KV_DTYPE
from recipes.policy import Policy

DRAFTED = "speculative decoding counts with the weights"


class AblationRun:
    """Measures what is missing, and adds the result to the run's record."""

    def __init__(
        self,
        plan: Plan,
        stages: StageRunner,
        serving: Serving,
        log: RunRecorder,
        note: str = "",
    ) -> None:
        self._plan = plan
        self._stages = stages
        self._log = log
        self._note = note
        self._asking = serving

    def run(self) -> None:
        """Attribute the loss of every variant that needs it.

        Note those that cannot be attributed.
        """
        judged = {report.recipe: report for report in self._log.variants()}
        for variant in self._plan.variants:
            if report := judged.get(variant.recipe.name):
                self._tell(variant, report)

    def _tell(self, variant: VariantPlan, judged: VariantReport) -> None:
        name = judged.recipe
        asked = {gate.name for gate in judged.quality}
        suites = [each for each in fidelity_suites(self._plan.policy) if each in asked]
        if not suites:
            self._stages.progress.note(
                f"{name}: nothing to attribute: no suite of kind fidelity was asked; the policy "
                "needs one (docs/how-to/suites.md)"
            )
            return
        before, after = kv_dtype(self._plan.baseline), kv_dtype(variant)
        if before == after:
            cause = "weights, or by speculative decoding" if speculates(variant) else "weights"
            self._stages.progress.note(
                f"{name}: nothing to attribute: its KV cache is of the baseline's type, {after}, "
                f"so all that it lost, it lost by its {cause}"
            )
            return
        try:
            found = self._attribute(variant, suites)
        except PrepareError as error:
            self._stages.progress.note(f"{name}: its loss cannot be attributed: {error}")
            return
        self._log.note_variant(judged.model_copy(update={"ablation": found}))

    def _attribute(self, variant: VariantPlan, suites: list[str]) -> list[AttributionReport]:
        """Ask both further models all suites, with one server start each; then compare."""
        specs = {suite: variant.stages[suite] for suite in suites}
        dtypes = kv_dtype(self._plan.baseline), kv_dtype(variant)
        weights = with_kv_dtype(variant, dtypes[0])
        kv_cache = with_kv_dtype(self._plan.baseline, dtypes[1])
        asked = {
            side: {suite: self._stage(each, origin, suite, specs[suite]) for suite in suites}
            for side, each, origin in (
                ("weights", weights, variant),
                ("kv_cache", kv_cache, self._plan.baseline),
            )
        }
        self._asking.hold(weights, list(asked["weights"].values()))
        self._asking.hold(kv_cache, list(asked["kv_cache"].values()))
        return [
            self._compare(
                suite,
                specs[suite],
                {s: each[suite] for s, each in asked.items()},
                dtypes,
                "; ".join(filter(None, (self._note, DRAFTED if speculates(variant) else ""))),
            )
            for suite in suites
        ]

    def _stage(
        self, served: VariantPlan, origin: VariantPlan, suite: str, last: StageSpec
    ) -> StageSpec:
        asked = EVALUATE.result_of(self._stages.find_finished(last)).n
        first = origin.stages[suite]
        of_the_answer = ("weights", "questions")
        return EVALUATE.spec(
            served.recipe.name,
            EVALUATE.parameters_of(first).model_copy(
                update={
                    "serving": served.arguments,
                    "max_questions": asked,
                    "rule": None,
                }
            ),
            {
                "baseline": last.inputs["baseline"],
                **{role: each for role, each in first.inputs.items() if role in of_the_answer},
            },
            EVALUATE.runtime_of(first).model_copy(update={"counted": None}),
            self._stages.store.root,
        )

    def _compare(
        self,
        suite: str,
        last: StageSpec,
        asked: dict[str, StageSpec],
        dtypes: tuple[str, str],
        note: str,
    ) -> AttributionReport:
        both = self._answers(last)
        try:
            return attribute(
                suite,
                baseline=self._answers(last.inputs["baseline"])[: len(both)],
                weights=self._answers(asked["weights"]),
                kv_cache=self._answers(asked["kv_cache"]),
                both=both,
                alpha=self._plan.policy.alpha,
                kv_dtypes=dtypes,
                note=note,
            )
        except ValueError as error:
            raise EvaluationDataError(
                f"the four sets of answers cannot be compared: {error}", where=suite
            ) from error

    def _answers(self, of: StageSpec | StageReference) -> list[dict[str, Any]]:
        return list(read_answers(Path(self._stages.store.stage_folder(of.stage, of.key))))


def fidelity_suites(policy: Policy) -> list[str]:
    """Return the names of the policy's suites of kind `fidelity`."""
    return [name for name, suite in policy.suites.items() if suite.kind == "fidelity"]


def kv_dtype(variant: VariantPlan) -> str:
    """Return the type of its KV cache."""
    if variant.arguments is None:
        raise ValueError(f"{variant.recipe.name} is not ours to serve")
    return str(variant.arguments.engine_arguments[KV_DTYPE])


def speculates(variant: VariantPlan) -> bool:
    """Return whether it decodes speculatively; the baseline never does."""
    return variant.arguments is not None and variant.arguments.speculative is not None


def with_kv_dtype(variant: VariantPlan, dtype: str) -> VariantPlan:
    """Return the variant with another KV cache type and name."""
    if variant.arguments is None:
        raise ValueError(f"{variant.recipe.name} is not ours to serve")
    engine_arguments = {**variant.arguments.engine_arguments, KV_DTYPE: dtype}
    name = f"{variant.recipe.name}.kv-{dtype.replace('_', '-')}"
    return replace(
        variant,
        recipe=variant.recipe.model_copy(update={"name": name}),
        arguments=replace(variant.arguments, engine_arguments=engine_arguments),
        stages={},
        served=(),
    )

"""`--ablate`: separates a variant's loss into that of its weights and that of its KV cache.

Each is also served with the baseline's other part, for the `fidelity` suites. No attempt is
counted.
"""

from __future__ import annotations

from dataclasses import replace

from artifacts.run_record import VariantReport
from eval_gates.answer_log import read_answers
from eval_gates.attribution import AttributionReport, attribute
from eval_gates.rows import Answer
from pipeline.core.errors import EvaluationDataError, PrepareError
from pipeline.core.stage import StageReference, StageSpec
from pipeline.plan.plan import Arm, Plan
from pipeline.run.recorder import RunRecorder
from pipeline.run.serving import Serving
from pipeline.run.stage_run import StageRunner
from pipeline.stages.evaluate import EVALUATE
from recipes.engines.engine import KV_DTYPE

DRAFTED = "speculative decoding counts with the weights"


class AblationRun:
    """Measurement of what is missing for the attribution."""

    def __init__(
        self, plan: Plan, stages: StageRunner, serving: Serving, log: RunRecorder, note: str = ""
    ) -> None:
        self._plan = plan
        self._stages = stages
        self._serving = serving
        self._log = log
        self._note = note

    def run(self) -> None:
        """Attribute the loss of judged variants, or note why not."""
        judged = {report.recipe: report for report in self._log.variants()}
        for arm in self._plan.variants:
            if (report := judged.get(arm.recipe.name)) is None:
                continue
            try:
                found = self._attribute(arm, report)
            except PrepareError as error:
                found = f"its loss cannot be attributed: {error}"
            if isinstance(found, str):
                self._stages.progress.note(f"{arm.recipe.name}: {found}")
            else:
                self._log.note_variant(report.model_copy(update={"ablation": found}))

    def _attribute(self, arm: Arm, judged: VariantReport) -> list[AttributionReport] | str:
        """Ask both further models, or return why not."""
        baseline, asked = self._plan.baseline, {gate.name for gate in judged.quality}
        suites = [
            name
            for name, suite in self._plan.policy.suites.items()
            if suite.kind == "fidelity" and name in asked
        ]
        if not suites:
            return (
                "nothing to attribute: no suite of kind fidelity was asked; the policy needs one "
                "(docs/how-to/suites.md)"
            )
        before, after = kv_dtype(baseline), kv_dtype(arm)
        drafts = arm.arguments is not None and arm.arguments.speculative is not None
        if before == after:
            cause = "weights, or by speculative decoding" if drafts else "weights"
            return (
                f"nothing to attribute: its KV cache is of the baseline's type, {after}, so all "
                f"that it lost, it lost by its {cause}"
            )
        alone: dict[str, dict[str, StageSpec]] = {}
        for side, origin, dtype in (("weights", arm, before), ("kv_cache", baseline, after)):
            served = with_kv_dtype(origin, dtype)
            alone[side] = {s: self._stage(served, origin, arm.stages[s], s) for s in suites}
            self._serving.hold(served, list(alone[side].values()))
        found = []
        for suite in suites:
            both = self._answers(arm.stages[suite])
            try:
                report = attribute(
                    suite,
                    baseline=self._answers(arm.stages[suite].inputs["baseline"])[: len(both)],
                    weights=self._answers(alone["weights"][suite]),
                    kv_cache=self._answers(alone["kv_cache"][suite]),
                    both=both,
                    alpha=self._plan.policy.alpha,
                    kv_dtypes=(before, after),
                    note="; ".join(filter(None, (self._note, DRAFTED if drafts else ""))),
                )
            except ValueError as error:
                raise EvaluationDataError(
                    f"the four sets of answers cannot be compared: {error}", where=suite
                ) from error
            found.append(report)
        return found

    def _stage(self, served: Arm, origin: Arm, judged: StageSpec, suite: str) -> StageSpec:
        first = origin.stages[suite]
        asked = EVALUATE.result_of(self._stages.find_finished(judged)).n
        changes = {"serving": served.arguments, "max_questions": asked, "rule": None}
        inputs: dict[str, StageSpec | StageReference] = {"baseline": judged.inputs["baseline"]}
        for role, reference in first.inputs.items():
            if role in ("weights", "questions"):
                inputs[role] = reference
        return EVALUATE.spec(
            served.recipe.name,
            EVALUATE.parameters_of(first).model_copy(update=changes),
            inputs,
            EVALUATE.runtime_of(first).model_copy(update={"counted": None}),
            self._stages.store.root,
        )

    def _answers(self, of: StageSpec | StageReference) -> list[Answer]:
        return read_answers(self._stages.store.stage_folder(of.stage, of.key))


def kv_dtype(arm: Arm) -> str:
    """Return the type of its KV cache."""
    assert arm.arguments is not None
    return str(arm.arguments.engine_arguments[KV_DTYPE])


def with_kv_dtype(arm: Arm, dtype: str) -> Arm:
    """Return the arm with this KV cache type."""
    assert arm.arguments is not None
    engine_arguments = {**arm.arguments.engine_arguments, KV_DTYPE: dtype}
    name = f"{arm.recipe.name}.kv-{dtype.replace('_', '-')}"
    return replace(
        arm,
        recipe=arm.recipe.model_copy(update={"name": name}),
        arguments=replace(arm.arguments, engine_arguments=engine_arguments),
        stages={},
        served=(),
    )

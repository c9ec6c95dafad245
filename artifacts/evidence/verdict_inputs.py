"""One judged variant's stages, found from its judge stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from artifacts.deployable import Deployable, as_tag, unservable_error
from artifacts.evidence.bundle import BundleVerdict
from artifacts.registry import POLICY_TAG
from pipeline.serving.served_model import ServedModel
from pipeline.stages.adopt import ADOPT, AdoptParameters
from pipeline.stages.attempts import JudgeParameters
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsParameters, CheckWeightsResult
from pipeline.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateResult
from pipeline.stages.judge import JUDGE, JudgeResult, policy_digest
from pipeline.stages.quantize import QUANTIZE, QuantizeResult, WeightsProvenance
from pipeline.stages.screen import SCREEN, ScreenResult
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedResult
from prepare.errors import EvidenceError
from prepare.stage import StageRecord, StageReference, TypedStageRecord
from recipes.engines import KERNELS
from recipes.quantizers.adopted import AdoptedQuantization

Find = Callable[[str, str], StageRecord | None]


@dataclass(frozen=True)
class VerdictInputs:
    """Records of the stages that a verdict depends on."""

    judge: TypedStageRecord[JudgeParameters, JudgeResult]
    quantize: TypedStageRecord[WeightsProvenance, QuantizeResult]  # or adopt
    check_weights: TypedStageRecord[CheckWeightsParameters, CheckWeightsResult]
    screen: TypedStageRecord[ServedModel, ScreenResult]  # with the server's facts
    baseline_screen: TypedStageRecord[ServedModel, ScreenResult]
    # the candidate's, by suite
    evaluations: Mapping[str, TypedStageRecord[EvaluateParameters, EvaluateResult]]
    speed: Mapping[str, TypedStageRecord[SpeedParameters, SpeedResult]]  # by role

    @classmethod
    def load_by_key(cls, find: Find, key: str) -> VerdictInputs:
        """Find them by key.

        EvidenceError if a stage is missing, or endpoints without weights were judged.
        """
        judge = record_of(find, StageReference(stage=JUDGE.name, key=key))
        evaluations = {
            suite: EVALUATE.typed(record_of(find, judge.inputs[f"candidate.{suite}"]))
            for suite in JUDGE.parameters_of(judge).policy.suites
        }
        suite, first = next(iter(evaluations.items()))
        candidate = first.record
        baseline = record_of(find, judge.inputs[f"baseline.{suite}"])
        if "weights" not in candidate.inputs:
            raise EvidenceError(
                "this verdict is on endpoints that someone else serves: there are no weights",
                where=f"stage judge {key}",
                hint="`prepare model CHECKPOINT` makes variants that can be bundled",
            )
        check_weights = record_of(find, candidate.inputs["weights"])
        made = record_of(find, check_weights.inputs["weights"])
        return cls(
            judge=JUDGE.typed(judge),
            quantize=ADOPT.typed(made) if made.stage == ADOPT.name else QUANTIZE.typed(made),
            check_weights=CHECK_WEIGHTS.typed(check_weights),
            screen=SCREEN.typed(record_of(find, candidate.inputs["screen"])),
            baseline_screen=SCREEN.typed(record_of(find, baseline.inputs["screen"])),
            evaluations=evaluations,
            speed={
                role: SPEED.typed(record_of(find, reference))
                for role, reference in judge.inputs.items()
                if reference.stage == SPEED.name
            },
        )

    @property
    def trust_remote_code(self) -> bool:
        return self.screen.parameters.trust_remote_code

    @property
    def made_by(self) -> str:
        """Maker of the weights; '' if a recipe made them."""
        quantization = self.quantize.parameters.quantization
        return quantization.made_by if isinstance(quantization, AdoptedQuantization) else ""

    @cached_property
    def deployable(self) -> Deployable:
        """The tuple; EvidenceError if records are incomplete."""
        try:
            served = self.screen.parameters
            facts = self.screen.result.server.__pydantic_extra__
            evaluated, *_ = self.evaluations.values()
            return Deployable.model_validate(
                {
                    "weights": self.quantize.result.weights_digest,
                    "engine_version": self.screen.result.engine_version,
                    "environment.quantize": self.quantize.parameters.environment,
                    "environment.serve": served.engine,
                    "environment.evaluate": evaluated.parameters.environment,
                    "serving": served.serving,
                    "hardware": served.hardware,
                    "kernels": {k: fact for k, fact in facts.items() if k in KERNELS} or None,
                }
            )
        except (ValueError, LookupError) as error:
            raise unservable_error(error, f"stage judge {self.judge.record.key}") from error

    def tags(self, verdict: BundleVerdict) -> dict[str, str]:
        """Return the tags that follow from the evidence."""
        made_by = {"prepare.made_by": self.made_by} if self.made_by else {}
        return {
            **self.deployable.tags(),
            POLICY_TAG: policy_digest(self.judge.record),
            "prepare.recipe": verdict.recipe,
            "prepare.verdict": verdict.variant.verdict,
            "prepare.not_shown": verdict.variant.not_shown,
            "prepare.override": verdict.override or "",
            "prepare.trust_remote_code": as_tag(self.trust_remote_code),
            **made_by,
        }

    def is_of(self, weights: str, auxiliary_files: str) -> bool:
        """Return whether weights and the files next to them have the judged digests.

        Adoption checks linked weights' files.
        """
        checked = self.check_weights.result
        made = self.quantize
        linked = isinstance(made.parameters, AdoptParameters) and not made.parameters.copied
        return (weights == checked.weights_digest == made.result.weights_digest) and (
            linked or checked.auxiliary_files_digest == auxiliary_files
        )


def record_of(find: Find, reference: StageReference) -> StageRecord:
    """Return a stage's record, or raise EvidenceError."""
    record = find(reference.stage, reference.key)
    if record is None:
        raise EvidenceError(
            f"the stage '{reference.stage}' that the verdict depends on is gone",
            where=f"stages/{reference.stage}/{reference.key}",
            hint="run the model again; what is still there is reused",
        )
    return record

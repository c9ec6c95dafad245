"""One judged variant's stages, found from its judge stage on, for a bundle and a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from artifacts.served_model import ServedModel
from artifacts.stages.adopt import ADOPT
from artifacts.stages.benchmark import BENCHMARK, BenchmarkParameters, BenchmarkResult
from artifacts.stages.check_weights import CHECK_WEIGHTS, CheckParameters, CheckResult
from artifacts.stages.coherence import COHERENCE, CoherenceResult
from artifacts.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateResult
from artifacts.stages.judge import JUDGE, JudgeParameters, JudgeResult
from artifacts.stages.quantize import QUANTIZE, MadeWeights, QuantizeResult
from pipeline.core.errors import EvidenceError
from pipeline.core.stage import Kept
from pipeline.core.stage_record import StageRecord, StageReference

Find = Callable[[str, str], StageRecord | None]


@dataclass(frozen=True)
class JudgedVariant:
    """The records of the stages that a verdict rests on."""

    judge: Kept[JudgeParameters, JudgeResult]  # gives the verdict
    quantize: Kept[MadeWeights, QuantizeResult]  # made the weights, or took them in
    check_weights: Kept[CheckParameters, CheckResult]  # saw that they are sound
    coherence: Kept[ServedModel, CoherenceResult]  # of the candidate; with the server's facts
    benchmark: Kept[BenchmarkParameters, BenchmarkResult]  # the candidate's load test
    baseline_benchmark: Kept[BenchmarkParameters, BenchmarkResult]  # the baseline's

    @classmethod
    def load_by_key(cls, find: Find, key: str) -> JudgedVariant:
        """Find them from the key of the judge stage.

        Raises:
            EvidenceError: a stage is gone, or the verdict is on endpoints without weights.
        """
        judge = record_of(find, StageReference(stage="judge", key=key))
        if "candidate.benchmark" not in judge.inputs:
            raise EvidenceError(
                "this verdict is on endpoints that someone else serves: there are no weights",
                where=f"stage judge {key}",
                cure="`prepare model CHECKPOINT` makes variants that can be bundled",
            )
        benchmark = record_of(find, judge.inputs["candidate.benchmark"])
        check_weights = record_of(find, benchmark.inputs["weights"])
        made = record_of(find, check_weights.inputs["weights"])
        return cls(
            judge=JUDGE.kept(judge),
            quantize=ADOPT.kept(made) if made.stage == ADOPT.name else QUANTIZE.kept(made),
            check_weights=CHECK_WEIGHTS.kept(check_weights),
            coherence=COHERENCE.kept(record_of(find, benchmark.inputs["coherence"])),
            benchmark=BENCHMARK.kept(benchmark),
            baseline_benchmark=BENCHMARK.kept(record_of(find, judge.inputs["baseline.benchmark"])),
        )

    @property
    def trust_remote_code(self) -> bool:
        """Whether it was served with code of the checkpoint's own."""
        return self.benchmark.parameters.trust_remote_code

    def evaluations(self, find: Find) -> dict[str, Kept[EvaluateParameters, EvaluateResult]]:
        """The candidate's last round of each suite."""
        return {
            suite: EVALUATE.kept(record_of(find, self.judge.record.inputs[f"candidate.{suite}"]))
            for suite in self.judge.parameters.policy.suites
        }

    def is_of(self, weights: str) -> bool:
        """Whether these are the weights that were made, checked and judged, by their digest."""
        checked, made = self.check_weights.result, self.quantize.result
        return weights == checked.weights_digest == made.weights_digest


def record_of(find: Find, reference: StageReference) -> StageRecord:
    """A stage that must be there; raises EvidenceError when it is gone."""
    record = find(reference.stage, reference.key)
    if record is None:
        raise EvidenceError(
            f"the stage '{reference.stage}' that the verdict rests on is gone",
            where=f"stages/{reference.stage}/{reference.key}",
            cure="run the model again; what is still there is reused",
        )
    return record


def collect_stages(find: Find, roots: list[StageReference]) -> list[StageRecord]:
    """Every stage that these rest on, each once, themselves among them, sorted by place.

    Raises:
        EvidenceError: one of them is gone.
    """
    found: dict[tuple[str, str], StageRecord] = {}
    pending = list(roots)
    while pending:
        reference = pending.pop()
        place = (reference.stage, reference.key)
        if place not in found:
            found[place] = record_of(find, reference)
            pending += found[place].inputs.values()
    return [found[place] for place in sorted(found)]

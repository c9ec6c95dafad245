"""One judged variant's stages, found from its judge stage on, for a bundle and a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.errors import EvidenceError
from pipeline.core.stage_record import StageRecord, StageReference

Find = Callable[[str, str], StageRecord | None]


@dataclass(frozen=True)
class JudgedVariant:
    """The records of the stages that a verdict rests on."""

    judge: StageRecord  # gives the verdict
    quantize: StageRecord  # made the weights
    check_weights: StageRecord  # saw that they are sound
    coherence: StageRecord  # the candidate's; has the server's command line
    benchmark: StageRecord  # the candidate's load test
    baseline_benchmark: StageRecord  # the baseline's

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
        return cls(
            judge=judge,
            quantize=record_of(find, check_weights.inputs["weights"]),
            check_weights=check_weights,
            coherence=record_of(find, benchmark.inputs["coherence"]),
            benchmark=benchmark,
            baseline_benchmark=record_of(find, judge.inputs["baseline.benchmark"]),
        )

    @property
    def trust_remote_code(self) -> bool:
        """Whether it was served with code of the checkpoint's own."""
        return bool(self.benchmark.parameters["trust_remote_code"])

    def evaluations(self, find: Find) -> dict[str, StageRecord]:
        """The candidate's last round of each suite."""
        return {
            suite: record_of(find, self.judge.inputs[f"candidate.{suite}"])
            for suite in self.judge.parameters["policy"]["suites"]
        }


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

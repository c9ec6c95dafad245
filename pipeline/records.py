"""What is written down: of a stage, of a gate, of a variant, of a whole run.

Frozen models with a `schema_version`; `RunReport` is also what `--json` prints.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from eval_gates.records import GateReport, Record, ThroughputReport, Verdict
from pipeline.run_command import check_command

SCHEMA_VERSION = 2

StageStatus = Literal["ran", "reused", "failed"]


class StageSpec(Record):
    """All that `prepare stage run` needs: what to do (part of the key) and where (not part)."""

    schema_version: int = Field(SCHEMA_VERSION, description="of this record")
    stage: str = Field(description="name of the stage, a module of pipeline.stages")
    variant: str = Field(description="name of the recipe whose variant this is about")
    key: str = Field(description="digest of stage, revision, parameters and inputs' keys")
    parameters: dict[str, Any] = Field(description="everything that can change the output")
    inputs: dict[str, StageReference] = Field(description="earlier stages, by role")
    runtime: dict[str, Any] = Field(
        description="where to do it: an endpoint's URL, an interpreter; never changes the output"
    )
    store: str = Field(description="folder of the store")

    def as_reference(self) -> StageReference:
        """This stage as an input of a later one."""
        return StageReference(stage=self.stage, key=self.key)


class StageReference(Record):
    """A finished stage, as a later stage's input."""

    stage: str = Field(description="name of the stage")
    key: str = Field(description="its key in the store")


StageSpec.model_rebuild()


class StageRecord(Record):
    """What a finished stage left beside its outputs, as stage.json."""

    schema_version: int = Field(SCHEMA_VERSION, description="of this record")
    stage: str = Field(description="name of the stage")
    variant: str = Field(description="name of the recipe it was first run for")
    key: str = Field(description="digest that the folder is named by")
    parameters: dict[str, Any] = Field(description="as in the spec")
    inputs: dict[str, StageReference] = Field(description="as in the spec")
    input_digests: dict[str, str] = Field(
        description="by role, digest of the input's result as it was; an input that was made "
        "again with another result makes this stage stale"
    )
    result: dict[str, Any] = Field(description="facts that later stages and reports read")
    notes: list[str] = Field(description="what was said aloud while it ran")
    seconds: float = Field(description="wall time")
    finished: str = Field(description="UTC time, ISO 8601")
    peak_memory_bytes: int | None = Field(
        None, description="largest resident set of the stage's worker, when there was one"
    )


class VariantReport(Record):
    """What became of one recipe."""

    recipe: str
    weights_bytes: int | None = Field(description="None when it was never made")
    verdict: Verdict | Literal["error", "skipped"] = Field(
        description="skipped: a rung of a ladder that another one before it made needless"
    )
    reason: str = Field(description="why, in words; for an error what, where and the cure")
    p_value: float | None = Field(
        None, description="of 'worse than allowed', the largest of its gates'; None if not judged"
    )
    trial: int | None = Field(
        None,
        description="how many trials there were against this baseline under this policy, with "
        "this one, which has a share of the error rate; None if not judged, or not counted",
    )
    promoted: bool
    registry_version: str | None = Field(None, description="when it was registered")
    gates: list[GateReport]
    throughput: ThroughputReport | None


class StageReport(Record):
    """How one stage of a run ended."""

    name: str
    variant: str
    status: StageStatus
    seconds: float = Field(description="wall time; of a reused stage, to find it")
    key: str | None = Field(description="in the store; None for 'serve', which has no output")


class SourceFacts(Record):
    """The checkpoint that a variant was made of, as others may be told of it."""

    ref: str = Field(description="as the user named it")
    digest: str = Field(description="over its files' digests")
    revision: str = Field("", description="commit on the Hub")
    base_model: str = Field("", description="id on the Hub, where known")
    licence: str = Field("", description="identifier as the Hub has them, where known")
    licence_name: str = Field("", description="of a licence that is called 'other'")
    licence_link: str = Field("", description="of a licence that is called 'other'")


class CheckpointReport(Record):
    """Which checkpoint a run was about."""

    ref: str = Field(description="as the user named it")
    digest: str = Field(description="sha256 over its files' digests")
    source: SourceFacts | None = Field(
        None, description="what its own card tells; None in runs before this was kept"
    )


class RunReport(Record):
    """A whole run: what `--json` prints and run.json keeps."""

    schema_version: int = SCHEMA_VERSION
    run: str = Field(description="id of the run")
    status: Literal["running", "finished", "failed", "interrupted", "killed"]
    exit_code: int | None
    started: str
    seconds: float
    command: dict[str, Any] = Field(description="options as resolved")
    checkpoint: CheckpointReport | None
    registered_name: str | None = Field(None, description="name in the model registry")
    variants: list[VariantReport]
    stages: list[StageReport]
    notes: list[str] = Field(description="what was said aloud")
    error: dict[str, str] | None = Field(None, description="of a run that failed as a whole")

    @field_validator("command")
    @classmethod
    def _options_are_of_their_kinds(cls, command: dict[str, Any]) -> dict[str, Any]:
        check_command(command)
        return command

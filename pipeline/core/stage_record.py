"""Records of a stage: its specification and its outcome."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipeline.core.record import Record


class StageReference(Record):
    """A finished stage, as a later stage's input."""

    stage: str = Field(description="name of the stage")
    key: str = Field(description="its key in the store")


class StageSpec(Record):
    """What to do (part of the key) and where (not part)."""

    schema_version: Literal[1] = Field(1, description="of this record")
    stage: str = Field(description="name of the stage, a module of pipeline.stages")
    variant: str = Field(description="name of the variant's recipe")
    key: str = Field(description="digest of stage, revision, parameters and inputs' keys")
    parameters: dict[str, Any] = Field(description="everything that can change the output")
    inputs: dict[str, StageReference] = Field(description="earlier stages, by role")
    runtime: dict[str, Any] = Field(
        description="where to do it: an endpoint's URL, an interpreter; never changes the output"
    )
    store: str = Field(description="directory of the store")

    def as_reference(self) -> StageReference:
        return StageReference(stage=self.stage, key=self.key)


class StageRecord(Record):
    """Outcome of a finished stage, stored as stage.json."""

    schema_version: Literal[1] = Field(1, description="of this record")
    stage: str = Field(description="name of the stage")
    variant: str = Field(description="name of the first recipe that ran it")
    key: str = Field(description="name of its directory")
    parameters: dict[str, Any] = Field(description="as in the spec")
    inputs: dict[str, StageReference] = Field(description="as in the spec")
    input_digests: dict[str, str] = Field(
        description="digest of each input's result, by role; an input that was recomputed with "
        "another result makes this stage stale"
    )
    result: dict[str, Any] = Field(description="facts that later stages and reports read")
    notes: list[str] = Field(description="notes that it reported")
    seconds: float = Field(description="wall time")
    finished: str = Field(description="UTC time, ISO 8601")
    peak_memory_bytes: int | None = Field(
        None, description="peak resident set size of the stage's worker, if any"
    )

    def as_reference(self) -> StageReference:
        return StageReference(stage=self.stage, key=self.key)

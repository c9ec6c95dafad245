"""What is written down of a stage: what it was asked, and what it left."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pipeline.core.record import Record

SCHEMA_VERSION = 1


class StageReference(Record):
    """A finished stage, as a later stage's input."""

    stage: str = Field(description="name of the stage")
    key: str = Field(description="its key in the store")


class WorkItem(Record):
    """A piece of work, as it is handed to whatever node does it."""

    prepare: str = Field(
        "",
        description="version of prepare that hands it out, to another machine with a digest of its "
        "code; not of one that only lies there",
    )


class StageSpec(WorkItem):
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
    notes: list[str] = Field(description="the notes that it reported")
    seconds: float = Field(description="wall time")
    finished: str = Field(description="UTC time, ISO 8601")
    peak_memory_bytes: int | None = Field(
        None, description="largest resident set of the stage's worker, when there was one"
    )

    def as_reference(self) -> StageReference:
        """This stage as an input of a later one."""
        return StageReference(stage=self.stage, key=self.key)

"""Declaration, key and record of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, ValidationError

from prepare.digest import digest_json
from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.untrusted import first_fault


class StageReference(Record):
    """A finished stage, as a later stage's input."""

    stage: str = Field(description="name of the stage")
    key: str = Field(description="its key in the store")


class StageSpec(Record):
    """What to do (in the key) and where (not in it)."""

    schema_version: Literal[1] = Field(1, description="of this record")
    stage: str = Field(description="name of the stage, a module of pipeline.stages")
    variant: str = Field(description="name of the variant's recipe, or of the suite of questions")
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


Parameters = TypeVar("Parameters", bound=Record)
Runtime = TypeVar("Runtime", bound=Record)
Result = TypeVar("Result", bound=Record)
Shape = TypeVar("Shape", bound=Record)


class WorkerRuntime(Record):
    """Runtime of a stage in an environment."""

    environment: str = Field("", description="name of the environment")
    accelerator: str = Field("", description="accelerator of the environment")
    python: str = Field(
        "",
        description="its interpreter",
    )


@dataclass(frozen=True)
class Stage(Generic[Parameters, Runtime, Result]):
    """One kind of stage.

    Increment `revision` if the output changes for the same parameters. Only `parameters` can change
    it, never `runtime`.
    """

    name: str
    revision: int
    parameters: type[Parameters]
    runtime: type[Runtime]
    result: type[Result]

    def spec(
        self,
        variant: str,
        parameters: Parameters,
        inputs: Mapping[str, StageSpec | StageReference],
        runtime: Runtime,
        store: Path,
    ) -> StageSpec:
        references = {
            role: reference.as_reference() if isinstance(reference, StageSpec) else reference
            for role, reference in inputs.items()
        }
        plain = parameters.model_dump(mode="json")
        return StageSpec(
            stage=self.name,
            variant=variant,
            key=stage_key(self.name, self.revision, plain, references),
            parameters=plain,
            inputs=references,
            runtime=runtime.model_dump(mode="json", exclude_unset=True),
            store=str(store),
        )

    def parameters_of(self, asked: StageSpec | StageRecord) -> Parameters:
        return _read_shape(self.parameters, asked.parameters, asked, "parameters")

    def runtime_of(self, spec: StageSpec) -> Runtime:
        return _read_shape(self.runtime, spec.runtime, spec, "runtime")

    def result_of(self, record: StageRecord) -> Result:
        return _read_shape(self.result, record.result, record, "result")

    def typed(self, record: StageRecord) -> TypedStageRecord[Parameters, Result]:
        return TypedStageRecord(self, record)


_Parameters = TypeVar("_Parameters", bound=Record, covariant=True)
_Result = TypeVar("_Result", bound=Record, covariant=True)


@dataclass(frozen=True)
class TypedStageRecord(Generic[_Parameters, _Result]):
    """A finished stage's record; EvidenceError on access if malformed."""

    stage: Stage[Any, Any, Any]
    record: StageRecord

    @cached_property
    def parameters(self) -> _Parameters:
        parameters: _Parameters = self.stage.parameters_of(self.record)
        return parameters

    @cached_property
    def result(self) -> _Result:
        result: _Result = self.stage.result_of(self.record)
        return result


def _read_shape(
    shape: type[Shape], plain: dict[str, Any], of: StageSpec | StageRecord, part: str
) -> Shape:
    try:
        return shape.model_validate(plain)
    except ValidationError as error:
        raise EvidenceError(
            f"the {part} of a stage '{of.stage}' are not supported by this version: "
            f"{first_fault(error)}",
            where=f"stages/{of.stage}/{of.key}",
            hint="it was changed, or another version of prepare wrote it",
        ) from error


def stage_key(
    stage: str, revision: int, parameters: Mapping[str, Any], inputs: Mapping[str, StageReference]
) -> str:
    """Return the digest of all that determines the output."""
    return digest_json(
        {
            "stage": stage,
            "revision": revision,
            "parameters": parameters,
            "inputs": {role: reference.key for role, reference in inputs.items()},
        }
    )

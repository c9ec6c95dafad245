"""Declaration of a stage; stored records are validated against these models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, ValidationError

from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.core.untrusted import first_fault

Parameters = TypeVar("Parameters", bound=Record)
Runtime = TypeVar("Runtime", bound=Record)
Result = TypeVar("Result", bound=Record)
Shape = TypeVar("Shape", bound=Record)


class WorkerRuntime(Record):
    """Runtime of a stage whose work runs in an environment."""

    environment: str = Field("", description="name of the environment")
    accelerator: str = Field("", description="accelerator of the environment")
    python: str = Field(
        "",
        description="its interpreter",
    )


@dataclass(frozen=True)
class Stage(Generic[Parameters, Runtime, Result]):
    """One kind of stage.

    Attributes:
        revision: of the code; increment it if the output changes for the same parameters.
        parameters: everything that can change the output.
        runtime: settings that cannot change the output.
        result: facts that later stages and reports read.
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
            role: each.as_reference() if isinstance(each, StageSpec) else each
            for role, each in inputs.items()
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
    """A finished stage's record; EvidenceError on access if it does not fit the stage."""

    stage: Stage[Any, Any, Any]
    record: StageRecord

    @cached_property
    def parameters(self) -> _Parameters:
        found: _Parameters = self.stage.parameters_of(self.record)
        return found

    @cached_property
    def result(self) -> _Result:
        found: _Result = self.stage.result_of(self.record)
        return found


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

"""What a stage is declared to be: its name, its code's revision, and the shapes of what it is given
and what it leaves. What is read of a record that lies somewhere goes through these shapes.
"""

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
from pipeline.core.untrusted.record import first_fault

Parameters = TypeVar("Parameters", bound=Record)
Runtime = TypeVar("Runtime", bound=Record)
Result = TypeVar("Result", bound=Record)
Shape = TypeVar("Shape", bound=Record)


class NoRuntime(Record):
    """Of a stage that finds all that it needs in its parameters and inputs."""


class WorkerRuntime(Record):
    """Of a stage whose work is done in an environment."""

    environment: str = Field("", description="its name")
    accelerator: str = Field("", description="that it is for")
    python: str = Field(
        "",
        description="its interpreter, known when the stage is submitted; where it is not on the "
        "node that runs the stage, it is found or built there",
    )


@dataclass(frozen=True)
class Stage(Generic[Parameters, Runtime, Result]):
    """One kind of stage.

    Attributes:
        name: of it, of the module that declares it, and of the one that has its code.
        revision: of the code; raised when the stage or its worker would write something else for
            the same parameters.
        parameters: everything that can change what it leaves.
        runtime: where to do it, which cannot.
        result: the facts that later stages and reports read.
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
        """The stage to run, with its key."""
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
        """What it was asked; raises EvidenceError where the record says what no such stage is."""
        return _read_shape(self.parameters, asked.parameters, asked, "parameters")

    def runtime_of(self, spec: StageSpec) -> Runtime:
        """Where it is done; raises EvidenceError as `parameters_of`."""
        return _read_shape(self.runtime, spec.runtime, spec, "runtime")

    def result_of(self, record: StageRecord) -> Result:
        """What it found; raises EvidenceError as `parameters_of`."""
        return _read_shape(self.result, record.result, record, "result")

    def typed(self, record: StageRecord) -> TypedStageRecord[Parameters, Result]:
        """The record, as one of this stage's."""
        return TypedStageRecord(self, record)


_Asked = TypeVar("_Asked", bound=Record, covariant=True)
_Left = TypeVar("_Left", bound=Record, covariant=True)


@dataclass(frozen=True)
class TypedStageRecord(Generic[_Asked, _Left]):
    """A finished stage's record with its parameters and result in their shapes.

    Raises:
        EvidenceError: where one is asked for that is not of its shape.
    """

    stage: Stage[Any, Any, Any]
    record: StageRecord

    @cached_property
    def parameters(self) -> _Asked:
        """Everything that can have changed the result."""
        found: _Asked = self.stage.parameters_of(self.record)
        return found

    @cached_property
    def result(self) -> _Left:
        """The facts that it found."""
        found: _Left = self.stage.result_of(self.record)
        return found


def _read_shape(
    shape: type[Shape], plain: dict[str, Any], of: StageSpec | StageRecord, part: str
) -> Shape:
    try:
        return shape.model_validate(plain)
    except ValidationError as error:
        raise EvidenceError(
            f"the {part} of a stage '{of.stage}' are none that this prepare knows: "
            f"{first_fault(error)}",
            where=f"stages/{of.stage}/{of.key}",
            cure="it was changed, or another version of prepare wrote it",
        ) from error

"""The stage that makes the demo checkpoint."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime


class DemoParameters(Record):
    """Which demo."""

    model: str = Field(description="its name")
    package: str = Field(description="digest of the package's lock")
    environment: str = Field(description="identity of the one that converts")


class DemoResult(Record):
    """What was converted."""

    source: str = Field(description="file of the package")
    name: str = Field(description="of the model, by its metadata")
    tensors: int
    parameters: int
    dtype: str


DEMO_CHECKPOINT = Stage("demo_checkpoint", 1, DemoParameters, WorkerRuntime, DemoResult)

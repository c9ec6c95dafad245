"""The stage that makes 16-bit weights of quantized ones."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime
from recipes.checkpoints.folder import Checkpoint
from recipes.checkpoints.source_format import Converter


class DequantizeParameters(Record):
    """What is converted."""

    checkpoint: str = Field(description="digest of the source")
    converter: Converter
    environment: str = Field(description="identity of the one that converts")


class DequantizeRuntime(WorkerRuntime):
    """Place of the source."""

    checkpoint: Checkpoint


class DequantizeResult(Record):
    """What was converted."""

    tensors: int = Field(description="of the 16-bit checkpoint")
    versions: dict[str, str] = Field(description="of the libraries")


DEQUANTIZE = Stage("dequantize", 1, DequantizeParameters, DequantizeRuntime, DequantizeResult)

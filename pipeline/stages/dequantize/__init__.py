"""The stage that makes 16-bit weights of a checkpoint that was released quantized."""

from __future__ import annotations

from pydantic import Field

from pipeline.checkpoint.folder import Checkpoint
from pipeline.checkpoint.source_format import Converter
from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime


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

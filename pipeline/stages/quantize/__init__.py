"""The stage that makes a variant's weights."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime
from recipes.checkpoints.folder import Checkpoint
from recipes.quantization import AnyQuantization


class WeightsProvenance(Record):
    """How weights are, or were, made."""

    checkpoint: str = Field(description="digest of the source")
    quantization: AnyQuantization
    calibration_data: dict[str, Any] = Field({}, description="identity of the texts")
    environment: str = Field(description="identity of the one that quantizes")


class CalibrationCompute(Record):
    """Settings that change a calibration's numbers."""

    dtype: str | None = Field(None, description="None for the model's own")
    environment: dict[str, str] = Field({}, description="variables that limit the CPU's features")


class QuantizeParameters(WeightsProvenance):
    """How weights are made."""

    trust_remote_code: bool = False
    compute: CalibrationCompute = CalibrationCompute()

    @property
    def kind(self) -> str:
        return self.quantization.kind


class QuantizeRuntime(WorkerRuntime):
    """Source and texts."""

    checkpoint: Checkpoint
    recipe: dict[str, Any] = Field({}, description="as it is kept next to the weights")
    left_alone: str = Field("", description="what stays in 16 bits besides the recipe's own list")
    calibration_file: str | None = None
    needs_hub: bool = False


class QuantizeResult(Record):
    """Facts on the weights; None if not reported."""

    weights_digest: str
    weights_bytes: int
    versions: dict[str, str] = Field({}, description="of the libraries")
    scheme: str | None = None
    group_size: int | None = None
    quantized_modules: int | None = None
    calibration_blocks: int | None = None
    calibration_tokens: int | None = None
    calibration_digest: str | None = None
    experts: int | None = None
    least_tokens_of_an_expert: int | None = None
    shards: int | None = None
    source_bytes: int | None = None
    device: str | None = None


QUANTIZE = Stage("quantize", 1, QuantizeParameters, QuantizeRuntime, QuantizeResult)

"""The stage that tries two layers before the whole checkpoint."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.stages.check_weights import CheckWeightsParameters, CheckWeightsResult
from pipeline.stages.quantize import QuantizeParameters, QuantizeRuntime


class DryRunParameters(Record):
    """Two stages to try, with few samples."""

    layers: int
    quantize: QuantizeParameters
    check_weights: CheckWeightsParameters
    revisions: dict[str, int] = Field(description="of the two stages' code")

    @property
    def kind(self) -> str:
        """What its duration depends on most."""
        return self.quantize.kind


class DryRunResult(Record):
    """What came of it."""

    layers: list[int] = Field(fail_fast=True)
    source_bytes: int
    weights_bytes: int
    seconds: dict[str, float] = Field(description="of each step")
    verified: CheckWeightsResult


DRY_RUN = Stage("dry_run", 1, DryRunParameters, QuantizeRuntime, DryRunResult)

"""The stage that adopts existing weights."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.stages.quantize import QuantizeResult, WeightsProvenance


class AdoptParameters(WeightsProvenance):
    """The weights, and how they were made."""

    files: dict[str, str] = Field(description="digest of each, by name")
    made: QuantizeResult | None = Field(None, description="None for others' weights")
    copied: bool = Field(False, description="so that they can be promoted")


class AdoptRuntime(Record):
    """Place of the weights."""

    folder: str


ADOPT = Stage("adopt", 2, AdoptParameters, AdoptRuntime, QuantizeResult)

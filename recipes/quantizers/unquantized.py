"""Kind of the baseline: no quantization."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat


class NoQuantization(Quantization):
    """Unchanged checkpoint, for the baseline's recipe."""

    kind: Literal["none"] = "none"
    ignore: list[str] = Field(default=[], max_length=0)
    calibration: None = None

    quantizes: ClassVar[bool] = False

    @property
    def worker(self) -> str:
        raise NotImplementedError("the baseline is not quantized")

    @property
    def sqnr_floor_db(self) -> float:
        raise NotImplementedError("the baseline is not quantized")

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return ()

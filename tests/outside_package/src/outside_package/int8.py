"""A kind of quantization: 8-bit integers by channel, rounded to nearest without data."""

from __future__ import annotations

from typing import Literal

from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat


class NearestInt8(Quantization):
    """INT8 weights (one scale a row), INT8 activations (one scale a token)."""

    kind: Literal["nearest_int8"]

    @property
    def worker(self) -> str:
        return "outside_package.int8_worker"

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return (WeightFormat("int-quantized", 8, "int", "channel"),)

    @property
    def sqnr_floor_db(self) -> float:
        return 30.0  # SmolLM2-135M has 38.5 dB in its worst layer

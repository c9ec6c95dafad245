"""A kind of quantization: 8-bit integers by channel, rounded to nearest without data.

`InGroups` in place of `Quantization` adds a group size and calibration, `WithKvScales` scales of
the KV cache. A recipe's keys are the fields of the class.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat


class NearestInt8(Quantization):
    """INT8 weights (one scale a row), INT8 activations (one scale a token)."""

    # As in pyproject.toml: [project.entry-points."prepare.quantizers"].
    kind: Literal["nearest_int8"]

    # The worker's, of the group `prepare.environments`; without this line `quantize`, which has
    # llm-compressor.
    environment: ClassVar[str] = "outside-int8"

    @property
    def worker(self) -> str:
        return "outside_package.int8_worker"

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        """What config.json and headers must have: one format, or one for each group size."""
        return (WeightFormat("int-quantized", 8, "int", "channel"),)

    @property
    def sqnr_floor_db(self) -> float:
        """Some dB below the worst layer's, which a run prints; a wrong layer has about 0."""
        return 30.0  # SmolLM2-135M has 38.5 dB in its worst layer

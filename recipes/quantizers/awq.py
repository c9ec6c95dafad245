"""AWQ by llm-compressor, in compressed-tensors' packed integers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recipes.quantization import (
    LLM_COMPRESSOR_WORKER,
    InGroups,
    Quantization,
    Rounding,
    WithKvScales,
    groups_of,
)
from recipes.quantizers.preset import OTHERS_TOLD, EightBits, ModuleNames, WithOtherSchemes
from recipes.weight_format import WeightFormat


class AwqQuantization(InGroups, WithOtherSchemes, WithKvScales):
    """Activation-aware weight quantization (arXiv 2306.00978) by llm-compressor."""

    kind: Literal["awq"]
    bits: Literal[4, 8] = 4
    symmetric: bool = False
    observer: Literal["minmax", "mse"] = Field(
        "minmax", description="how a group's range is found: its extremes, or the smallest error"
    )
    # llm-compressor 0.14 divides by this less two.
    grid_points: int = Field(20, ge=3, le=1_000, description="candidate scales tried per layer")
    other_schemes: dict[EightBits, ModuleNames] = Field(default={}, description=OTHERS_TOLD)

    @property
    def worker(self) -> str:
        return LLM_COMPRESSOR_WORKER

    def limit_scales(self, most: int) -> tuple[Quantization, str]:
        if self.grid_points <= most:
            return self, ""
        remark = f"trying {most} candidate scales per layer instead of {self.grid_points}"
        return self.model_copy(update={"grid_points": most}), remark

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return self.in_each_size(
            lambda size: WeightFormat(
                "pack-quantized", self.bits, "int", "group", group=size, symmetric=self.symmetric
            )
        )

    @property
    def sqnr_floor_db(self) -> float:
        return 7.0 if self.bits == 4 else 10.0  # the demo's lowest layer in 4 bits has 13.4 dB

    @property
    def rounding(self) -> Rounding:
        return "rescaled"

    def format_description(self, group_size: int | None) -> str:
        points = "" if self.symmetric else ", with zero points"
        rest = f"{self.bits}-bit weights{groups_of(group_size)}{points}, 16-bit activations"
        return rest + self.words_of_others

    @property
    def method_description(self) -> str:
        return (
            "AWQ (arXiv 2306.00978), by llm-compressor: channels that matter to the activations "
            "are scaled up before rounding."
        )

"""GPTQ by llm-compressor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recipes.quantization import LLM_COMPRESSOR_WORKER, InGroups, Rounding, WithKvScales, groups_of
from recipes.quantizers.preset import OTHERS_TOLD, EightBits, ModuleNames, WithOtherSchemes
from recipes.weight_format import WeightFormat


class GptqQuantization(InGroups, WithOtherSchemes, WithKvScales):
    """GPTQ (arXiv 2210.17323), optionally after SmoothQuant (arXiv 2211.10438)."""

    kind: Literal["gptq"]
    scheme: Literal["W4A16", "W8A8"] = Field(
        description="W4A16: 4-bit weights in groups, symmetric. W8A8: 8-bit weights per channel "
        "(no groups), 8-bit activations per token"
    )
    dampening: float = Field(
        0.01,
        ge=1e-9,
        lt=1,
        description="addition to the Hessian's diagonal, as a share of its mean",
    )
    smoothing_strength: float | None = Field(
        None, ge=1e-6, lt=1, description="strength of SmoothQuant; not used when absent"
    )
    other_schemes: dict[EightBits, ModuleNames] = Field(default={}, description=OTHERS_TOLD)

    @property
    def worker(self) -> str:
        return LLM_COMPRESSOR_WORKER

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        if self.scheme == "W8A8":
            return (WeightFormat("int-quantized", 8, "int", "channel"),)
        return self.in_each_size(
            lambda size: WeightFormat("pack-quantized", 4, "int", "group", group=size)
        )

    @property
    def sqnr_floor_db(self) -> float:
        """Limits below the demo's lowest layers: 9.7 dB in 4 bits, 16.6 in 8 with SmoothQuant."""
        if self.scheme != "W8A8":
            return 5.0 if self.smoothing_strength is None else 7.0
        return 12.0 if self.smoothing_strength is None else 10.0

    @property
    def rounding(self) -> Rounding:
        return "compensated" if self.smoothing_strength is None else "rescaled"

    def format_description(self, group_size: int | None) -> str:
        rest = "8-bit weights (one scale an output channel), 8-bit activations (one scale a token)"
        if self.scheme == "W4A16":
            rest = f"4-bit weights, 16-bit activations{groups_of(group_size)}"
        return rest + self.words_of_others

    @property
    def method_description(self) -> str:
        strength = self.smoothing_strength
        words = (
            "GPTQ (arXiv 2210.17323), by llm-compressor: each rounding is compensated by the "
            "weights that follow."
        )
        if strength is None:
            return words
        return f"{words} SmoothQuant (arXiv 2211.10438) before it, strength {strength:g}."

"""Scales of an FP8 KV cache, which any kind by llm-compressor can calibrate with its weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recipes.quantization import Quantization


class WithKvScales(Quantization):
    """Quantization that may store scales of keys and values."""

    kv_cache_scales: Literal["tensor", "head"] | None = Field(
        None,
        description="calibrate scales of an FP8 KV cache and store them with the weights: one a "
        "layer (tensor), or one a key-value head, which vLLM serves with FlashAttention on a GPU",
    )

    @property
    def kv_cache_strategy(self) -> str | None:
        return "attn_head" if self.kv_cache_scales == "head" else self.kv_cache_scales

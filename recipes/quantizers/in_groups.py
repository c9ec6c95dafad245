"""Common parts of several kinds: groups of columns, and scales of an FP8 KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from recipes.quantization import Calibration, Quantization
from recipes.weight_format import WeightFormat


class InGroups(Quantization):
    """Quantization in which groups of columns share a scale."""

    group_size: int = Field(128, description="columns that share a scale", ge=1, le=65_536)
    smaller_group_sizes: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[64, 32],
        max_length=16,
        description="tried in this order if group_size does not divide; the run reports it",
    )
    calibration: Calibration

    def in_each_size(self, form: Callable[[int], WeightFormat]) -> tuple[WeightFormat, ...]:
        """Return a format for each group size, in the order to try."""
        return tuple(form(size) for size in (self.group_size, *self.smaller_group_sizes))


class WithKvScales(Quantization):
    """Quantization by llm-compressor that may store scales of keys and values."""

    kv_cache_scales: Literal["tensor", "head"] | None = Field(
        None,
        description="calibrate scales of an FP8 KV cache and store them with the weights: one a "
        "layer (tensor), or one a key-value head, which vLLM serves with FlashAttention on a GPU",
    )

    @property
    def kv_cache_strategy(self) -> str | None:
        return "attn_head" if self.kv_cache_scales == "head" else self.kv_cache_scales


def groups_of(size: int | None) -> str:
    """Return text for a model card."""
    return f" in groups of {size}" if size else ""

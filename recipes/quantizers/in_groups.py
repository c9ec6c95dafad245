"""Common parts of several kinds: groups of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from recipes.quantization import Calibration, Quantization
from recipes.weight_format import WeightFormat

FOUR_BITS_IN_FLOAT32 = 8  # the serving plugin upcasts 4-bit weights to float32


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

    def bytes_on_cpu(self, size: int, *, wide: bool) -> int:
        return widened_bytes(size, wide=wide)


def widened_bytes(size: int, *, wide: bool) -> int:
    """Return memory of `size` bytes of 4-bit weights on a CPU server."""
    return FOUR_BITS_IN_FLOAT32 * size if wide else size


def groups_of(size: int | None) -> str:
    """Return text for a model card."""
    return f" in groups of {size}" if size else ""

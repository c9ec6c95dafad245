"""Columns that share a scale; standard library only, since the quantizers' environments ask too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of compressed-tensors' presets. FP8_BLOCK quantizes activations by 128 columns.
OF_PRESETS = {"FP8_BLOCK": 128, "NVFP4": 16}
# Rows that share a scale, where it is not one a row or one a matrix.
ROWS_OF_PRESETS = {"FP8_BLOCK": 128}


def sizes_to_try(quantization: Mapping[str, Any]) -> tuple[int, ...]:
    """The group sizes to try, in order; empty where any number of columns will do."""
    scheme = quantization.get("scheme")
    if quantization["kind"] == "preset":
        return (OF_PRESETS[scheme],) if scheme in OF_PRESETS else ()
    if "group_size" not in quantization or scheme == "W8A8":
        return ()
    return (quantization["group_size"], *quantization["smaller_group_sizes"])


def rows_to_divide(quantization: Mapping[str, Any]) -> int | None:
    """Rows of a block, which have to divide those of layers that the engine puts together."""
    return ROWS_OF_PRESETS.get(str(quantization.get("scheme")))

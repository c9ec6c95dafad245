"""Check that biases were rescaled together with their layers.

A factor that divides a norm's weight or a layer's rows must also divide the bias. A norm's factor
follows from its weight; for a layer's rows it is the column factor of the layer that they feed. All
other vectors of a block must be unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.verification.function_equivalence import (
    defect_error,
    divide,
    find_fed_by_rows,
    max_offset,
    max_spread,
    mismatch,
    unfuse,
)
from pipeline.verification.number_types import Floats
from pipeline.verification.rescaling import RescalingFit
from pipeline.verification.unquantized_tensors import FLUSHED, ROUNDED, UnquantizedTensor
from pipeline.verification.weight_format import block_name

# A norm's weight was rounded before and after, its bias after.
ROUNDED_WITH_NORM = 4 * ROUNDED


def check_biases(
    layers: Mapping[str, RescalingFit],
    norms: Mapping[str, Floats],
    vectors: Sequence[UnquantizedTensor],
    where: str,
) -> None:
    """Check every vector except norm weights against the scaling of its module.

    Args:
        norms: by module, the factor of each output channel.
        vectors: other vectors of the blocks, with their values.
    """
    for block in sorted({block_name(vector.name) for vector in vectors}):
        inside = {name: layer for name, layer in layers.items() if block_name(f"{name}.") == block}
        parts = unfuse(inside)
        readers = {feeding: parts[fed] for fed, feeding in find_fed_by_rows(parts).items()}
        for vector in vectors:
            module, _, leaf = vector.name.rpartition(".")
            if block_name(vector.name) != block:
                continue
            if leaf == "bias" and module in norms:
                _check_with_norm(vector, norms[module], where)
            elif leaf == "bias" and module in readers:
                _check_with_rows(vector, readers[module], where)
            elif leaf != "bias" or module in parts or module not in inside:
                _check_unscaled(vector, where)
            # Otherwise it belongs to a fused matrix, where only the last rows may be rescaled. No
            # known architecture has both.


def _check_unscaled(vector: UnquantizedTensor, where: str) -> None:
    before, after = _numbers(vector)
    if vector.altered is None:
        off = before != after
    else:
        off = np.abs(after - before) > np.abs(before) * ROUNDED + FLUSHED
    if off.any():
        raise defect_error(
            f"'{vector.name}' differs from the source's in {off.sum()} of {len(off)} values, and "
            "no rescaling applies to it",
            where,
        )


def _check_with_norm(vector: UnquantizedTensor, factors: Floats, where: str) -> None:
    before, after = _numbers(vector)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(after - before * factors)
        # The factor of a weight near 0 is unknown.
        off = apart > np.abs(before * factors) * ROUNDED_WITH_NORM + FLUSHED
    if off.any():
        raise defect_error(
            f"'{vector.name}' was not rescaled with the norm's weight, in {off.sum()} of "
            f"{len(off)} channels",
            where,
        )


def _check_with_rows(vector: UnquantizedTensor, reader: RescalingFit, where: str) -> None:
    before, after = _numbers(vector)
    factors = reader.columns * np.median(reader.rows)
    seen = np.abs(after) > FLUSHED  # smaller values may have lost precision
    lost = ~seen & (np.abs(before * factors) > 2 * FLUSHED)
    turned = seen & (np.sign(before) != np.sign(after))
    spread = offset = 0.0
    if seen.any():
        spread, offset = mismatch(divide(after, before)[seen], factors[seen])
    if (
        lost.any()
        or turned.any()
        or spread > max_spread(reader)
        or abs(offset) > max_offset(reader)
    ):
        raise defect_error(
            f"'{vector.name}' does not fit the scaling of the layer that its rows feed",
            where,
        )


def _numbers(vector: UnquantizedTensor) -> tuple[Floats, Floats]:
    if vector.weights is None:
        raise ValueError(f"the values of {vector.name} were not stored")
    return vector.weights

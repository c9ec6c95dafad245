"""Whether the biases beside rescaled layers were rescaled with them.

What divides a norm's weight or a layer's rows divides the bias too. Of a norm the factor is known
from its weight; of a layer's rows it is what the columns of the layer that they feed were
multiplied by. Any other vector of a block is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.verification.function_equivalence import (
    defect,
    divide,
    find_fed_by_rows,
    mismatch,
    offset_allowed,
    spread_allowed,
    unfuse,
)
from pipeline.verification.number_types import Floats
from pipeline.verification.rescaling import RescalingFit
from pipeline.verification.unquantized_tensors import FLUSHED, ROUNDED, UnquantizedTensor
from pipeline.verification.weight_format import block_of

# A norm's weight was rounded before and after, and its bias after.
ROUNDED_WITH_NORM = 4 * ROUNDED


def check_biases(
    layers: Mapping[str, RescalingFit],
    norms: Mapping[str, Floats],
    vectors: Sequence[UnquantizedTensor],
    where: str,
) -> None:
    """Hold every vector that is no norm's weight against the scaling of what it belongs to.

    Args:
        norms: by module, what each channel of its outputs was multiplied by.
        vectors: the others of the blocks, with their numbers.
    """
    for block in sorted({block_of(vector.name) for vector in vectors}):
        inside = {name: layer for name, layer in layers.items() if block_of(f"{name}.") == block}
        parts = unfuse(inside)
        readers = {feeding: parts[fed] for fed, feeding in find_fed_by_rows(parts).items()}
        for vector in vectors:
            module, _, leaf = vector.name.rpartition(".")
            if block_of(vector.name) != block:
                continue
            if leaf == "bias" and module in norms:
                _check_with_norm(vector, norms[module], where)
            elif leaf == "bias" and module in readers:
                _check_with_rows(vector, readers[module], where)
            elif leaf != "bias" or module in parts or module not in inside:
                _check_unscaled(vector, where)
            # Else it is of a fused matrix, of whose rows only the last may have been rescaled: no
            # architecture is known that has both.


def _check_unscaled(vector: UnquantizedTensor, where: str) -> None:
    before, after = _numbers(vector)
    if vector.altered is None:
        off = before != after
    else:
        off = np.abs(after - before) > np.abs(before) * ROUNDED + FLUSHED
    if off.any():
        raise defect(
            f"'{vector.name}' differs from the source's in {off.sum()} of {len(off)} numbers, and "
            "nothing may rescale it",
            where,
        )


def _check_with_norm(vector: UnquantizedTensor, factors: Floats, where: str) -> None:
    before, after = _numbers(vector)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(after - before * factors)
        # A factor of a weight next to 0 is not known.
        off = apart > np.abs(before * factors) * ROUNDED_WITH_NORM + FLUSHED
    if off.any():
        raise defect(
            f"'{vector.name}' was not rescaled with the norm's weight, in {off.sum()} of "
            f"{len(off)} channels",
            where,
        )


def _check_with_rows(vector: UnquantizedTensor, reader: RescalingFit, where: str) -> None:
    """What the reader's columns were multiplied by is known but for the noise of its weights."""
    before, after = _numbers(vector)
    factors = reader.columns * np.median(reader.rows)
    seen = np.abs(after) > FLUSHED  # smaller ones may have few digits left
    lost = ~seen & (np.abs(before * factors) > 2 * FLUSHED)
    turned = seen & (np.sign(before) != np.sign(after))
    spread = offset = 0.0
    if seen.any():
        spread, offset = mismatch(divide(after, before)[seen], factors[seen])
    if (
        lost.any()
        or turned.any()
        or spread > spread_allowed(reader)
        or abs(offset) > offset_allowed(reader)
    ):
        raise defect(
            f"'{vector.name}' does not fit the scaling of the layer that its rows feed",
            where,
        )


def _numbers(vector: UnquantizedTensor) -> tuple[Floats, Floats]:
    if vector.weights is None:
        raise ValueError(f"the numbers of {vector.name} were not kept")
    return vector.weights

"""Whether the biases beside rescaled layers were rescaled with them.

What divides a norm's weight or a layer's rows divides the bias too. Of a norm the factor is known
exactly, from its weight; of a layer's rows it is what the columns of the layer that they feed were
multiplied by. Any other vector in a block is as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import VerificationError
from pipeline.verification.function_preserved import (
    CURE,
    divided,
    fed_by_rows,
    mismatch,
    offset_allowed,
    spread_allowed,
    unfused,
)
from pipeline.verification.weight_format import block_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.verification.number_types import Floats
    from pipeline.verification.rescaling import Rescaled

Vectors = tuple["Floats", "Floats"]

# Three numbers were rounded to 8 bits: a norm's weight and bias before, and after.
ROUNDED = 4 * 2.0**-8
# Float16's smallest normal number, below which it keeps fewer digits.
FLUSHED = 2.0**-14


def check_biases(
    layers: Mapping[str, Rescaled],
    norms: Mapping[str, Vectors],
    others: Mapping[str, Vectors],
    where: str,
) -> None:
    """Hold every vector that is no norm's weight against the scaling of what it belongs to.

    Args:
        layers: what was fitted, by module.
        norms: weights of the source and of the variant by module, each one number a channel.
        others: the other vectors in blocks, by tensor.
        where: the variant, for the error.

    Raises:
        VerificationError: naming a vector that does not fit.
    """
    for name, (before, after) in others.items():
        module, _, leaf = name.rpartition(".")
        inside = unfused(
            {m: layer for m, layer in layers.items() if block_of(f"{m}.") == block_of(name)}
        )
        feeds = {feeding: fed for fed, feeding in fed_by_rows(inside).items()}
        if leaf != "bias":
            _check_exact(name, before, after, where)
        elif module in norms:
            _check_exact(name, before, after * divided(*norms[module]), where)
        elif module in feeds:
            _check_fed(name, before, after, inside[feeds[module]], where)
        elif module in inside or module not in layers:
            _check_exact(name, before, after, where)
        # Else it is of a fused matrix, of whose rows only the last may have been rescaled: no
        # architecture is known that has both.


def _check_exact(name: str, before: Floats, restored: Floats, where: str) -> None:
    import numpy as np

    known = np.isfinite(restored)
    off = np.abs(restored - before)[known] > np.abs(before[known]) * ROUNDED + FLUSHED
    if off.any():
        raise VerificationError(
            f"'{name}' differs from the source's by more than the scaling of its layer, "
            f"in {off.sum()} of {len(before)} channels",
            where=where,
            cure=CURE,
        )


def _check_fed(name: str, before: Floats, after: Floats, fed: Rescaled, where: str) -> None:
    """Of rows that feed a layer; what its columns were multiplied by is known but for noise."""
    import numpy as np

    if not before.any() and not after.any():
        return
    known = divided(1.0, fed.columns * np.median(fed.rows))
    spread, offset = mismatch(divided(before, after), known)
    if spread > spread_allowed(fed) or abs(offset) > offset_allowed(fed):
        raise VerificationError(
            f"'{name}' does not fit the scaling of the layer that its rows feed "
            f"(off by {max(spread, abs(offset)):.0%} in the median)",
            where=where,
            cure=CURE,
        )

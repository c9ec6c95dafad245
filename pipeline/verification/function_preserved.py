"""Whether AWQ's or SmoothQuant's scaling leaves the model's function as it was.

Both multiply the columns of a layer and divide what feeds it by the same numbers: the weight of a
norm, or the rows of the layer before (v_proj for o_proj, up_proj for down_proj). A slip between
the two gives garbage whose layers look sound one by one. `rescaling.py` has fitted what each
layer's columns and rows were multiplied by; here every layer's columns have to be made up for by
one of the things in its block that can feed it, and everything rescaled by a layer it feeds.

Compared are medians over channels of logarithms: a channel that was nearly rounded away has no
scale that could be seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import VerificationError
from pipeline.verification.weight_format import block_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.verification.number_types import Floats
    from pipeline.verification.rescaling import Rescaled

# Natural logarithms: about as many parts of one. Of the demo's variants the largest are 0.04
# (spread) and 0.06 (offset), both at 4 bits.
SPREAD = 0.1
OFFSET = 0.25
# Layers that read the same activations have to agree in what makes up for their scaling.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
CURE = "quantize again; where it comes again, the quantizer has a defect: use another recipe"


@dataclass(frozen=True)
class Feed:
    """What can feed a layer.

    Attributes:
        name: of the norm or the layer; empty for activations that nothing rescaled.
        factors: that its outputs were multiplied by, one a channel.
    """

    name: str
    factors: Floats


def check_preserved(
    layers: Mapping[str, Rescaled], norms: Mapping[str, tuple[Floats, Floats]], where: str
) -> None:
    """Hold the scaling of every layer against what feeds it.

    Some families (Gemma) store the weights of their norms less one; nothing in a checkpoint says
    so, and the whole model has to fit one way or the other.

    Args:
        layers: what was fitted, by module.
        norms: weights of the source and of the variant by module, each one number a channel.
        where: the variant, for the error.

    Raises:
        VerificationError: naming a layer or a norm whose scaling nothing makes up for.
    """
    try:
        _check_all(layers, {name: _divided(after, w) for name, (w, after) in norms.items()}, where)
    except VerificationError as error:
        less_one = {name: _divided(1 + after, 1 + w) for name, (w, after) in norms.items()}
        try:
            _check_all(layers, less_one, where)
        except VerificationError:
            raise error from None


def _check_all(layers: Mapping[str, Rescaled], norms: dict[str, Floats], where: str) -> None:
    for block in sorted({block_of(f"{module}.") for module in layers}):
        inside = {name: layer for name, layer in layers.items() if block_of(f"{name}.") == block}
        feeds = [Feed(name, f) for name, f in norms.items() if block_of(f"{name}.") == block]
        _check_block(inside, feeds, where)


def _check_block(layers: dict[str, Rescaled], norms: list[Feed], where: str) -> None:
    by_rows = {name: Feed(name, _divided(1.0, layer.rows)) for name, layer in layers.items()}
    offsets: dict[str, float] = {}
    feeds: dict[str, str] = {}
    for group in _groups(layers):
        others = [feed for name, feed in by_rows.items() if name not in group]
        feed = _best_feed([layers[name] for name in group], [*norms, *others])
        for name in group:
            spread, offsets[name] = _mismatch(feed.factors, layers[name].columns)
            feeds[name] = feed.name
            if spread > SPREAD:
                raise VerificationError(
                    f"the columns of '{name}' were rescaled, and neither a norm nor another "
                    f"layer makes up for it (the best is off by {spread:.0%} in the median)",
                    where=where,
                    cure=CURE,
                )
    _check_offsets(layers, by_rows, feeds, offsets, where)
    _check_norms_used(norms, set(feeds.values()), where)


def _check_offsets(
    layers: dict[str, Rescaled],
    by_rows: dict[str, Feed],
    feeds: dict[str, str],
    offsets: dict[str, float],
    where: str,
) -> None:
    """A factor of all channels may stand with the rows or with the columns: the sum counts."""
    fed_by = {feed: name for name, feed in feeds.items() if feed in layers}
    for name, offset in offsets.items():
        if feeds[name] in layers:
            continue  # judged with the layer that feeds it
        total = offset + (offsets[fed_by[name]] if name in fed_by else 0.0)
        if abs(total) > OFFSET:
            raise VerificationError(
                f"'{name}' is scaled by {math.exp(abs(total)):.2f} as a whole, "
                "and nothing makes up for it",
                where=where,
                cure=CURE,
            )
    for name, feed in by_rows.items():
        spread, _ = _mismatch(feed.factors, feed.factors * 0 + 1)
        if spread > SPREAD and name not in fed_by:
            raise VerificationError(
                f"the rows of '{name}' were rescaled, and no layer makes up for it",
                where=where,
                cure=CURE,
            )


def _check_norms_used(norms: list[Feed], used: set[str], where: str) -> None:
    for norm in norms:
        spread, offset = _mismatch(norm.factors, norm.factors * 0 + 1)
        if max(spread, abs(offset)) > SPREAD and norm.name not in used:
            raise VerificationError(
                f"'{norm.name}.weight' was rescaled, and no layer makes up for it",
                where=where,
                cure=CURE,
            )


def _groups(layers: dict[str, Rescaled]) -> list[list[str]]:
    """Layers that read the same activations, the rest each by itself."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in layers:
        parent, _, leaf = name.rpartition(".")
        number = next((n for n, words in enumerate(SIBLINGS) if leaf in words), -1)
        groups.setdefault((parent, number) if number >= 0 else (name, -1), []).append(name)
    return list(groups.values())


def _best_feed(layers: list[Rescaled], feeds: list[Feed]) -> Feed:
    import numpy as np

    channels = len(layers[0].columns)
    plain = Feed("", np.ones(channels, np.float32))
    fitting = [plain, *(feed for feed in feeds if len(feed.factors) == channels)]
    return min(
        fitting,
        key=lambda feed: max(_mismatch(feed.factors, layer.columns)[0] for layer in layers),
    )


def _mismatch(factors: Floats, columns: Floats) -> tuple[float, float]:
    """Median distance from a common factor, and that factor, both as logarithms.

    `columns` is what the stored columns have to be multiplied by to be the source's again, and so
    equals `factors` where the function is as it was.
    """
    import numpy as np

    ratio = _divided(factors, columns)
    known = ratio[np.isfinite(ratio) & (ratio > 0)]
    if not known.size:
        return float("inf"), 0.0
    logarithms = np.log(known.astype(np.float64))
    offset = float(np.median(logarithms))
    return float(np.median(np.abs(logarithms - offset))), offset


def _divided(above: Any, below: Any) -> Floats:
    """NaN where there is no ratio."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.divide(above, below), np.float32)

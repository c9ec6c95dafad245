"""Whether AWQ's or SmoothQuant's scaling leaves the model's function as it was.

Both multiply the columns of a layer and divide what feeds it by the same numbers: the weight of a
norm, or the rows of the layer before (v_proj for o_proj, up_proj for down_proj; of matrices fused
into one, those of its last part). A slip between the two gives garbage whose layers look sound one
by one. `rescaling.py` has fitted what each layer's columns and rows were multiplied by; here every
layer's columns have to be made up for by one of the things in its block that can feed it, and
everything rescaled by a layer it feeds.

Compared are medians over channels of logarithms: a channel that was nearly rounded away has no
scale that could be seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Floats
from pipeline.verification.rescaling import RescalingFit
from pipeline.verification.weight_format import block_of

# How far scales may seem to be off, as natural logarithms: shares of the layer's noise (the root of
# noise over signal), and a least. Of the demo's variants the largest are 0.04 for the spread over
# channels and 0.06 for the factor that all have in common, with noise of 0.2.
SPREAD_OF_NOISE, LEAST_SPREAD = 0.5, 0.03
OFFSET_OF_NOISE, LEAST_OFFSET = 0.8, 0.04
NORM_CHANGED = 0.1
# Layers that read the same activations have to agree in what makes up for their scaling.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
READ_BY_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")
READ_BY_MLP = ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "fc1")
# Layers whose columns are fed by another's rows, by the last part of their names.
FED_BY_ROWS = {"o_proj": "v_proj", "down_proj": "up_proj", "w2": "w3", "fc2": "fc1"}
# Fused matrices (Phi-3) by the layer that their last part feeds, and their parts, each as many rows
# as that layer has columns. Where heads share keys and values the parts of qkv_proj differ, and no
# scaling of its rows for o_proj can be right: it stays whole then, and has to be as it was.
FUSED = {
    "o_proj": ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    "down_proj": ("gate_up_proj", ("gate_proj", "up_proj")),
}
CURE = "quantize again; if it happens again, the quantizer has a defect: use another recipe"


@dataclass(frozen=True)
class Producer:
    """What can feed a layer."""

    name: str  # of the norm or the layer; empty for activations that nothing rescaled
    factors: Floats  # that its outputs were multiplied by, one a channel


def check_preserved(
    layers: Mapping[str, RescalingFit], norms: Mapping[str, tuple[Floats, Floats]], where: str
) -> dict[str, Floats]:
    """Hold the scaling of every layer against what feeds it.

    Some families (Gemma) store the weights of their norms less one; nothing in a checkpoint says
    so, and the whole model has to fit one way or the other.

    Args:
        norms: weights of the source and of the variant by module, each one number a channel.

    Returns:
        by norm, what its outputs were multiplied by, one number a channel.
    """
    plain = {name: divide(after, w) for name, (w, after) in norms.items()}
    less_one = {name: divide(1 + after, 1 + w) for name, (w, after) in norms.items()}
    try:
        _check_all(layers, plain, where)
    except VerificationError as error:
        try:
            _check_all(layers, less_one, where)
        except VerificationError:
            raise error from None
        return less_one
    return plain


def _check_all(layers: Mapping[str, RescalingFit], norms: dict[str, Floats], where: str) -> None:
    for block in sorted({block_of(f"{module}.") for module in layers}):
        inside = {name: layer for name, layer in layers.items() if block_of(f"{name}.") == block}
        feeds = [Producer(name, f) for name, f in norms.items() if block_of(f"{name}.") == block]
        _check_block(unfuse(inside), feeds, where)


def defect(what: str, where: str) -> VerificationError:
    """The error for what the quantizer got wrong, whatever it was asked."""
    return VerificationError(what, where=where, hint=CURE)


def unfuse(layers: dict[str, RescalingFit]) -> dict[str, RescalingFit]:
    """The parts of fused matrices as layers of their own, named 'mlp.gate_up_proj.up_proj'."""
    found = dict(layers)
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        fused, parts = FUSED.get(leaf, ("", ()))
        whole = layers.get(f"{parent}.{fused}")
        if whole and len(whole.rows) == len(parts) * len(layer.columns):
            del found[f"{parent}.{fused}"]
            for part, rows in zip(parts, np.split(whole.rows, len(parts)), strict=True):
                found[f"{parent}.{fused}.{part}"] = _take_rows(whole, rows)
    return found


def _take_rows(whole: RescalingFit, rows: Floats) -> RescalingFit:
    """Some of a layer's rows, with the factor that they have in common moved to the columns.

    Only the product of rows and columns is seen; of rows that were scaled and rows that were not,
    fitted together, neither come out around 1.
    """
    known = rows[np.isfinite(rows) & (rows > 0)]
    common = np.float32(np.median(known)) if known.size else np.float32(1)
    return RescalingFit(whole.noise, whole.columns * common, rows / common)


def _check_block(layers: dict[str, RescalingFit], norms: list[Producer], where: str) -> None:
    fed_by = find_fed_by_rows(layers)
    # What a factor of all channels is off by, of the layers that are fed by rows: it may stand
    # with those rows, with the columns, or with the columns before, and only the sum counts.
    carried: dict[str, float] = {}
    for name, before in fed_by.items():
        spread, offset = mismatch(divide(1.0, layers[before].rows), layers[name].columns)
        carried[before] = offset
        if spread > spread_allowed(layers[name]) + spread_allowed(layers[before]):
            raise defect(
                f"the rows of '{before}' and the columns of '{name}' were rescaled, "
                f"and do not make up for each other (off by {spread:.0%} in the median)",
                where,
            )
    used: set[str] = set()
    for group in _groups({name: layer for name, layer in layers.items() if name not in fed_by}):
        used |= _check_group({name: layers[name] for name in group}, norms, carried, where)
    _check_rows(layers, set(fed_by.values()), where)
    _check_norms_used(norms, used, where)


def find_fed_by_rows(layers: dict[str, RescalingFit]) -> dict[str, str]:
    """Of the layers that another's rows feed, which one; none where a channel feeds several."""
    found = {}
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        fused, _ = FUSED.get(leaf, ("", ()))
        for before in (f"{parent}.{each}{FED_BY_ROWS.get(leaf)}" for each in ("", f"{fused}.")):
            if before in layers and len(layers[before].rows) == len(layer.columns):
                found[name] = before
    return found


def _check_group(
    layers: dict[str, RescalingFit], norms: list[Producer], carried: dict[str, float], where: str
) -> set[str]:
    """Layers that read the same; returns the norms that fit all of them."""
    channels = len(next(iter(layers.values())).columns)
    untouched = Producer("", np.ones(channels, np.float32))
    norms = [norm for norm in norms if len(norm.factors) == channels]
    known = _norm_before(next(iter(layers)), norms)
    feeds = [untouched, *norms] if known is None else [known or untouched]
    fitting, spreads = [], []
    for feed in feeds:
        off = {name: mismatch(feed.factors, layer.columns) for name, layer in layers.items()}
        worst = max(off, key=lambda name: off[name][0] - spread_allowed(layers[name]))
        spreads.append((off[worst][0] - spread_allowed(layers[worst]), off[worst][0], worst))
        if spreads[-1][0] <= 0:
            factors = {name: off[name][1] + carried.get(name, 0.0) for name in layers}
            fitting.append((feed, factors))
    if not fitting:
        _, spread, worst = min(spreads)
        words = (
            f"the columns of '{worst}' and '{known.name}.weight' before them were not rescaled "
            f"alike (off by {spread:.0%} in the median)"
            if known
            else f"the columns of '{worst}' were rescaled, and neither a norm nor another layer "
            f"makes up for it (the best is off by {spread:.0%} in the median)"
        )
        raise defect(words, where)
    whole = [
        feed
        for feed, factors in fitting
        if all(
            abs(factor) <= offset_allowed(layers[name]) * (2 if name in carried else 1)
            for name, factor in factors.items()
        )
    ]
    if not whole:
        factors = min((factors for _, factors in fitting), key=lambda f: max(map(abs, f.values())))
        name = max(factors, key=lambda name: abs(factors[name]))
        raise defect(
            f"'{name}' is scaled by {math.exp(abs(factors[name])):.2f} as a whole"
            + (", together with the layer that it feeds," if name in carried else "")
            + " and nothing makes up for it",
            where,
        )
    return {feed.name for feed in whole}


def _norm_before(layer: str, norms: list[Producer]) -> Producer | Literal[False] | None:
    """The norm of the block that such a layer reads, by the names that transformers gives them.

    Returns:
        the norm; False where the layer reads what no norm has touched; None where that is not
        known, and whichever fits is taken for it.
    """
    named = {norm.name.rpartition(".")[2]: norm for norm in norms}
    parent, _, leaf = layer.rpartition(".")
    # OLMo2 and others norm what attention and MLP give, and not what they read.
    after_mlp = "post_feedforward_layernorm" in named
    nothing: Literal[False] | None = None
    if after_mlp and "input_layernorm" not in named:
        nothing = False
    if leaf in READ_BY_ATTENTION and parent.endswith("self_attn"):
        return named.get("input_layernorm", nothing)
    if leaf not in READ_BY_MLP:
        return None
    for name in ("pre_feedforward_layernorm", "pre_mlp_layernorm"):  # Gemma 2 and 3; Afmoe
        if name in named:
            return named[name]
    if after_mlp:
        return nothing
    # Attention and MLP side by side have one norm (Phi-2, Cohere).
    alone = named.get("input_layernorm") if len(named) == 1 else None
    return named.get("post_attention_layernorm", alone)


def _check_rows(layers: dict[str, RescalingFit], feeding: set[str], where: str) -> None:
    for name, layer in layers.items():
        spread, _ = mismatch(layer.rows, np.ones_like(layer.rows))
        if name not in feeding and spread > spread_allowed(layer):
            raise defect(
                f"the rows of '{name}' were rescaled, and no layer makes up for it",
                where,
            )


def _check_norms_used(norms: list[Producer], used: set[str], where: str) -> None:
    for norm in norms:
        spread, offset = mismatch(norm.factors, np.ones_like(norm.factors))
        if max(spread, abs(offset)) > NORM_CHANGED and norm.name not in used:
            raise defect(
                f"'{norm.name}.weight' was rescaled, and no layer makes up for it",
                where,
            )


def spread_allowed(layer: RescalingFit) -> float:
    """How far the scales of its channels may seem to be off, as a logarithm: more with noise."""
    return max(LEAST_SPREAD, SPREAD_OF_NOISE * _noise_share(layer))


def offset_allowed(layer: RescalingFit) -> float:
    """Likewise the factor that all its channels have in common."""
    return max(LEAST_OFFSET, OFFSET_OF_NOISE * _noise_share(layer))


def _noise_share(layer: RescalingFit) -> float:
    noise = layer.noise
    return math.sqrt(noise.noise / noise.signal) if noise.signal else 0.0


def _groups(layers: dict[str, RescalingFit]) -> list[list[str]]:
    """Layers that read the same activations, the rest each by itself."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in layers:
        parent, _, leaf = name.rpartition(".")
        number = next((n for n, words in enumerate(SIBLINGS) if leaf in words), -1)
        groups.setdefault((parent, number) if number >= 0 else (name, -1), []).append(name)
    return list(groups.values())


def mismatch(factors: Floats, columns: Floats) -> tuple[float, float]:
    """Median distance from a common factor, and that factor, both as logarithms.

    `columns` is what the stored columns have to be multiplied by to be the source's again, and so
    equals `factors` where the function is as it was.
    """
    ratio = divide(factors, columns)
    known = ratio[np.isfinite(ratio) & (ratio > 0)]
    if not known.size:
        return float("inf"), 0.0
    logarithms = np.log(known.astype(np.float64))
    offset = float(np.median(logarithms))
    return float(np.median(np.abs(logarithms - offset))), offset


def divide(above: Any, below: Any) -> Floats:
    """One by the other, a channel each; NaN or infinite where there is no ratio."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.divide(above, below), np.float32)

"""Check that the scaling of AWQ or SmoothQuant preserves the model's function.

Both multiply the columns of a layer and divide the layer's producer by the same factors. The
producer is the weight of a norm, or the rows of an earlier layer: v_proj for o_proj, up_proj for
down_proj. For a fused matrix it is the last part. An inconsistency between the two ruins the model
although each layer looks sound. `rescaling.py` has fitted the factors of each layer's columns and
rows. Here, a producer in the same block must compensate each layer's columns, and a consumer must
compensate each rescaled producer.

The comparison uses medians of logarithms over channels: channels that were nearly rounded away have
no visible scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.inspection.fused_sets import SIBLINGS
from pipeline.verification.number_types import Floats
from pipeline.verification.rescaling import RescalingFit
from pipeline.verification.weight_format import block_name

# Tolerances as natural logarithms: a multiple of the layer's noise (root of noise over signal), and
# a minimum. The demo's variants reach 0.04 for the spread over channels and 0.06 for the common
# factor, with noise of 0.2.
SPREAD_PER_NOISE, MIN_SPREAD = 0.5, 0.03
OFFSET_PER_NOISE, MIN_OFFSET = 0.8, 0.04
NORM_CHANGED = 0.1
READ_BY_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")
READ_BY_MLP = ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "fc1")
# Producer of a layer's columns, by the last part of the names.
FED_BY_ROWS = {"o_proj": "v_proj", "down_proj": "up_proj", "w2": "w3", "fc2": "fc1"}
# Fused matrices (Phi-3) by the consumer of their last part. Each part has as many rows as the
# consumer has columns. With grouped-query attention the parts of qkv_proj differ in size, and no
# scaling for o_proj is valid: qkv_proj is then not split and must be unchanged.
FUSED = {
    "o_proj": ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    "down_proj": ("gate_up_proj", ("gate_proj", "up_proj")),
}
HINT = "quantize again; if it happens again, the quantizer has a defect: use another recipe"


@dataclass(frozen=True)
class Producer:
    """A possible producer of a layer's inputs."""

    name: str  # norm or layer; empty for unscaled activations
    factors: Floats  # factor of each output channel


def check_preserved(
    layers: Mapping[str, RescalingFit], norms: Mapping[str, tuple[Floats, Floats]], where: str
) -> dict[str, Floats]:
    """Check the scaling of every layer against its producers.

    Some families (Gemma) store norm weights minus one, which checkpoints do not declare. The whole
    model must be consistent in one of the two forms.

    Args:
        norms: weights of source and variant by module, one value for each channel.

    Returns:
        by norm, the factor of each output channel.
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
    for block in sorted({block_name(f"{module}.") for module in layers}):
        inside = {name: layer for name, layer in layers.items() if block_name(f"{name}.") == block}
        feeds = [Producer(name, f) for name, f in norms.items() if block_name(f"{name}.") == block]
        _check_block(unfuse(inside), feeds, where)


def defect_error(what: str, where: str) -> VerificationError:
    """Return the error for a defect of the quantizer."""
    return VerificationError(what, where=where, hint=HINT)


def unfuse(layers: dict[str, RescalingFit]) -> dict[str, RescalingFit]:
    """Return layers with fused matrices split into parts, named 'mlp.gate_up_proj.up_proj'."""
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
    """Return some rows of a layer, with their common factor moved to the columns.

    Only the product of row and column factors is known. If scaled and unscaled rows are fitted
    together, neither are near 1.
    """
    known = rows[np.isfinite(rows) & (rows > 0)]
    common = np.float32(np.median(known)) if known.size else np.float32(1)
    return RescalingFit(whole.noise, whole.columns * common, rows / common)


def _check_block(layers: dict[str, RescalingFit], norms: list[Producer], where: str) -> None:
    fed_by = find_fed_by_rows(layers)
    # Common factor of layers whose producer is another layer's rows. It may be in those rows, in
    # the columns, or in the producer's columns; only the sum matters.
    offsets: dict[str, float] = {}
    for name, before in fed_by.items():
        spread, offset = mismatch(divide(1.0, layers[before].rows), layers[name].columns)
        offsets[before] = offset
        if spread > max_spread(layers[name]) + max_spread(layers[before]):
            raise defect_error(
                f"the rows of '{before}' and the columns of '{name}' were rescaled, "
                f"and do not make up for each other (off by {spread:.0%} in the median)",
                where,
            )
    used: set[str] = set()
    for group in _groups({name: layer for name, layer in layers.items() if name not in fed_by}):
        used |= _check_group({name: layers[name] for name in group}, norms, offsets, where)
    _check_rows(layers, set(fed_by.values()), where)
    _check_norms_used(norms, used, where)


def find_fed_by_rows(layers: dict[str, RescalingFit]) -> dict[str, str]:
    """Return the producer layer of each layer that has one, if each channel feeds one input."""
    found = {}
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        fused, _ = FUSED.get(leaf, ("", ()))
        for before in (f"{parent}.{each}{FED_BY_ROWS.get(leaf)}" for each in ("", f"{fused}.")):
            if before in layers and len(layers[before].rows) == len(layer.columns):
                found[name] = before
    return found


def _check_group(
    layers: dict[str, RescalingFit], norms: list[Producer], offsets: dict[str, float], where: str
) -> set[str]:
    channels = len(next(iter(layers.values())).columns)
    untouched = Producer("", np.ones(channels, np.float32))
    norms = [norm for norm in norms if len(norm.factors) == channels]
    known = _norm_before(next(iter(layers)), norms)
    feeds = [untouched, *norms] if known is None else [known or untouched]
    fitting, spreads = [], []
    for feed in feeds:
        off = {name: mismatch(feed.factors, layer.columns) for name, layer in layers.items()}
        worst = max(off, key=lambda name: off[name][0] - max_spread(layers[name]))
        spreads.append((off[worst][0] - max_spread(layers[worst]), off[worst][0], worst))
        if spreads[-1][0] <= 0:
            factors = {name: off[name][1] + offsets.get(name, 0.0) for name in layers}
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
        raise defect_error(words, where)
    whole = [
        feed
        for feed, factors in fitting
        if all(
            abs(factor) <= max_offset(layers[name]) * (2 if name in offsets else 1)
            for name, factor in factors.items()
        )
    ]
    if not whole:
        factors = min((factors for _, factors in fitting), key=lambda f: max(map(abs, f.values())))
        name = max(factors, key=lambda name: abs(factors[name]))
        raise defect_error(
            f"'{name}' is scaled by {math.exp(abs(factors[name])):.2f} as a whole"
            + (", together with the layer that it feeds," if name in offsets else "")
            + " and nothing makes up for it",
            where,
        )
    return {feed.name for feed in whole}


def _norm_before(layer: str, norms: list[Producer]) -> Producer | Literal[False] | None:
    """Return the norm that a layer reads, by transformers' names.

    Returns:
        the norm; False if the layer reads activations without a norm; None if unknown, and any norm
        that fits is accepted.
    """
    named = {norm.name.rpartition(".")[2]: norm for norm in norms}
    parent, _, leaf = layer.rpartition(".")
    # OLMo2 and others normalize the outputs of attention and MLP instead of the inputs.
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
    # Parallel attention and MLP share one norm (Phi-2, Cohere).
    alone = named.get("input_layernorm") if len(named) == 1 else None
    return named.get("post_attention_layernorm", alone)


def _check_rows(layers: dict[str, RescalingFit], feeding: set[str], where: str) -> None:
    for name, layer in layers.items():
        spread, _ = mismatch(layer.rows, np.ones_like(layer.rows))
        if name not in feeding and spread > max_spread(layer):
            raise defect_error(
                f"the rows of '{name}' were rescaled, and no layer makes up for it",
                where,
            )


def _check_norms_used(norms: list[Producer], used: set[str], where: str) -> None:
    for norm in norms:
        spread, offset = mismatch(norm.factors, np.ones_like(norm.factors))
        if max(spread, abs(offset)) > NORM_CHANGED and norm.name not in used:
            raise defect_error(
                f"'{norm.name}.weight' was rescaled, and no layer makes up for it",
                where,
            )


def max_spread(layer: RescalingFit) -> float:
    """Return the tolerance of the spread over channels, as a logarithm."""
    return max(MIN_SPREAD, SPREAD_PER_NOISE * _noise_share(layer))


def max_offset(layer: RescalingFit) -> float:
    """Return the tolerance of the common factor, as a logarithm."""
    return max(MIN_OFFSET, OFFSET_PER_NOISE * _noise_share(layer))


def _noise_share(layer: RescalingFit) -> float:
    noise = layer.noise
    return math.sqrt(noise.noise / noise.signal) if noise.signal else 0.0


def _groups(layers: dict[str, RescalingFit]) -> list[list[str]]:
    """Return layers that read the same activations, and so have the same producer."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in layers:
        parent, _, leaf = name.rpartition(".")
        number = next((n for n, words in enumerate(SIBLINGS) if leaf in words), -1)
        groups.setdefault((parent, number) if number >= 0 else (name, -1), []).append(name)
    return list(groups.values())


def mismatch(factors: Floats, columns: Floats) -> tuple[float, float]:
    """Return the median distance from a common factor, and that factor, as logarithms.

    `columns` restores the source from the stored columns, so it equals `factors` if the function is
    preserved.
    """
    ratio = divide(factors, columns)
    known = ratio[np.isfinite(ratio) & (ratio > 0)]
    if not known.size:
        return float("inf"), 0.0
    logarithms = np.log(known.astype(np.float64))
    offset = float(np.median(logarithms))
    return float(np.median(np.abs(logarithms - offset))), offset


def divide(above: Any, below: Any) -> Floats:
    """Return the ratio by channel; NaN or infinite where it is undefined."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.divide(above, below), np.float32)

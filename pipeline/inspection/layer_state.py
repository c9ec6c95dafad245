"""Fixed state of a linear-attention, Mamba or convolution layer, from config.json alone.

The shapes are those of `MambaStateShapeCalculator` in vLLM 0.33.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.inspection.layer_kinds import UnknownPatternError
from pipeline.inspection.model_shape import ModelShape, read_positive_int

FLOAT32, SIXTEEN_BIT = 4, 2
# Tokens that a block of attention is a multiple of, next to gated delta nets and Kimi's layers.
DELTA_CHUNK = 64


@dataclass(frozen=True)
class LayerState:
    """State of one layer for one sequence."""

    parts: tuple[tuple[int, int], ...]  # elements, and bytes of each; GPUs divide the elements
    # Blocks of one sequence: vLLM keeps the state at the last block's end for prefix caching, and
    # the kinds with a checkpoint in prefill keep one more.
    blocks: int = 3
    block_multiple: int = 1  # what tokens of a block must be a multiple of

    def bytes_on_gpu(self, tensor_parallel: int = 1) -> int:
        return sum(-(-elements // tensor_parallel) * size for elements, size in self.parts)


def layer_state(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState:
    """Return the state of each such layer.

    Raises:
        UnknownPatternError: the shape of the state is not known.
    """
    for read in (_gated_delta, _kimi, _mamba_2, _mamba_1, _convolution):
        if (found := read(level, shape, where)) is not None:
            return found
    raise UnknownPatternError("the state of its layers without attention is not known")


def _all(level: dict[str, Any], where: str, *keys: tuple[str, ...]) -> list[int] | None:
    """Return the values, or None if one is absent; each key may have several names."""
    found = [read_positive_int(level, names, where) for names in keys]
    return None if None in found else [each for each in found if each is not None]


def _recurrent(level: dict[str, Any], key: str, default: int) -> int:
    return {"float32": FLOAT32, "bfloat16": SIXTEEN_BIT, "float16": SIXTEEN_BIT}.get(
        str(level.get(key)), default
    )


def _gated_delta(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState | None:
    """Qwen3-Next and Qwen3.5."""
    values = _all(
        level,
        where,
        ("linear_num_key_heads",),
        ("linear_key_head_dim",),
        ("linear_num_value_heads",),
        ("linear_value_head_dim",),
        ("linear_conv_kernel_dim",),
    )
    if values is None:
        return None
    keys, key_width, heads, width, kernel = values
    convolved = (kernel - 1) * (2 * keys * key_width + heads * width)
    size = _recurrent(level, "mamba_ssm_dtype", SIXTEEN_BIT)
    parts = ((convolved, SIXTEEN_BIT), (heads * width * key_width, size))
    return LayerState(parts, block_multiple=DELTA_CHUNK)


def _kimi(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState | None:
    """Kimi Linear, as published or as transformers saves it."""
    linear = level.get("linear_attn_config")
    values = _all(
        linear if isinstance(linear, dict) else level,
        where,
        ("num_heads", "linear_num_heads"),
        ("head_dim", "linear_head_dim"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )
    if values is None or not (linear or "linear_num_heads" in level):
        return None
    heads, width, kernel = values
    convolved = (kernel - 1) * 3 * heads * width
    parts = ((convolved, SIXTEEN_BIT), (heads * width * width, FLOAT32))
    return LayerState(parts, blocks=2, block_multiple=DELTA_CHUNK)


def _mamba_2(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState | None:
    """Nemotron-H, Granite 4, Bamba and Falcon-H1."""
    values = _all(
        level,
        where,
        ("mamba_num_heads", "mamba_n_heads"),
        ("ssm_state_size", "mamba_d_state"),
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
    )
    if values is None:
        return None
    heads, state, groups, kernel = values
    expanded = (read_positive_int(level, ("mamba_expand", "expand"), where) or 2) * shape.hidden
    width = read_positive_int(level, ("mamba_head_dim", "mamba_d_head"), where) or expanded // heads
    convolved = (kernel - 1) * (heads * width + 2 * groups * state)
    is_nemotron = level.get("model_type") == "nemotron_h"
    size = _recurrent(level, "mamba_ssm_cache_dtype", FLOAT32 if is_nemotron else SIXTEEN_BIT)
    return LayerState(((convolved, SIXTEEN_BIT), (heads * width * state, size)))


def _mamba_1(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState | None:
    """Jamba."""
    values = _all(level, where, ("mamba_expand",), ("mamba_d_state",), ("mamba_d_conv",))
    if values is None:
        return None
    expand, state, kernel = values
    inner = expand * shape.hidden
    return LayerState((((kernel - 1) * inner, SIXTEEN_BIT), (inner * state, SIXTEEN_BIT)), blocks=2)


def _convolution(level: dict[str, Any], shape: ModelShape, where: str) -> LayerState | None:
    """LFM2."""
    values = _all(level, where, ("conv_L_cache",))
    if values is None:
        return None
    return LayerState((((values[0] - 1) * shape.hidden, SIXTEEN_BIT),), blocks=2)

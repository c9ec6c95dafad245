"""Memory of each decoder layer for one sequence, from config.json.

`docs/reference/kv-cache.md` compares it with vLLM's count. Layers without attention must be gated
delta nets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prepare.errors import CheckpointError
from recipes.checkpoints.model_shape import ModelShape, read_positive_int, text_level

Kind = Literal["full", "sliding", "chunked", "state"]

WORDS: dict[Any, Kind] = {  # of `layer_types`
    **dict.fromkeys(("full_attention", "attention", "deepseek_sparse_attention"), "full"),
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
}
# Keys of layers of several kinds, or of other widths, that are not supported.
UNREAD = (
    *("attention_other_setting", "compress_ratios", "per_layer_config", "swa_head_dim"),
    *("swa_num_key_value_heads", "attn_layer_indices", "attn_type_list", "block_types"),
    *("hybrid_layer_pattern", "hybrid_override_pattern", "layer_group_size", "mamba_d_state"),
    *("mixer_types", "sparse_attention_config", "ssm_state_size", "state_size", "conv_L_cache"),
    *("time_mix_extra_dim", "linear_attn_config"),
)
# Their latent projections are expanded to full heads before the engine caches them.
UNREAD_TYPES = ("minicpm3",)
# Period of full attention in transformers' classes if config.json has none.
PERIODS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
# vLLM keeps up to three blocks of a layer's state for one sequence.
STATE_BLOCKS = 3


class Stored(NamedTuple):
    """How many bytes a format of the KV cache takes."""

    element: float
    head: int = 0  # of a token's key and value, besides the elements: their scales


# NVFP4 has an 8-bit scale for each 16 elements.
STORED: dict[str, Stored] = {
    **dict.fromkeys(("auto", "bfloat16", "float16"), Stored(2)),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), Stored(1)),
    **dict.fromkeys(("fp8_per_token_head", "int8_per_token_head"), Stored(1, 8)),
    "int4_per_token_head": Stored(0.5, 8),
    "nvfp4": Stored(0.5 + 1 / 16),
}


class UnknownLayersError(Exception):
    """The config describes layers in an unsupported way."""


@dataclass(frozen=True)
class Layer:
    """Memory of one decoder layer for a sequence."""

    heads: int = 0  # key-value heads; 1 for latent attention, 0 without attention
    width: int = 0  # elements of one head for one token: key and value, or the latent vector
    window: int | None = None  # tokens that the layer looks back; None for all
    index_bytes: int = 0  # of a sparse index, for one token on each GPU
    # Bytes of one token in FP8 where an element is not a byte: sparse latent attention keeps
    # scales, and the rotary part in 16 bits.
    fp8_bytes: int | None = None
    state_bytes: int = 0  # fixed state of one sequence, divided by the GPUs

    def token_bytes(self, stored: Stored, gpus: int = 1) -> int:
        """Return a token's bytes on each GPU; heads may be replicated."""
        if not self.heads:
            return 0
        if stored == STORED["fp8"] and self.fp8_bytes is not None:
            return self.fp8_bytes + self.index_bytes
        heads = max(1, self.heads // gpus)
        return math.ceil(heads * (self.width * stored.element + stored.head)) + self.index_bytes


def sequence_bytes(
    layers: Sequence[Layer],
    context: int,
    stored: Stored,
    *,
    gpus: int = 1,
    block: int = 16,
    held: int = 0,
) -> int:
    """Return the bytes of one sequence in all layers, on each GPU.

    `context`, `block` and `held` are in tokens; windowed layers keep those in flight (`held`).
    """
    total = 0
    for layer in layers:
        tokens = context if layer.window is None else min(context, layer.window + held)
        total += -(-tokens // block) * block * layer.token_bytes(stored, gpus)
        total += -(-STATE_BLOCKS * layer.state_bytes // gpus)
    return total


def read_layers(config: dict[str, Any], shape: ModelShape, where: str) -> tuple[Layer, ...]:
    """Return each decoder layer.

    UnknownLayersError: unsupported pattern. CheckpointError: a value is invalid.
    """
    level = text_level(config)
    for key in UNREAD:
        value = level.get(key)
        is_one_kind = isinstance(value, list) and set(map(str, value)) == {"1"}  # MiniMax M2
        if value and not is_one_kind:
            raise UnknownLayersError(f"its layers follow {key}")
    if shape.model_type in UNREAD_TYPES:
        raise UnknownLayersError(f"its layers are of {shape.model_type}")
    layers = [_layer(level, shape, kind, where) for kind in _kinds(level, shape.layers, where)]
    # The last layers use earlier layers' keys and values (Gemma 3n and 4).
    shared = level.get("num_kv_shared_layers") or 0
    own = layers[: len(layers) - (shared if type(shared) is int else 0)]
    if not any(layer.heads for layer in own):
        raise UnknownLayersError("no layer has attention")
    return tuple(own)


def _layer(level: dict[str, Any], shape: ModelShape, kind: Kind, where: str) -> Layer:
    def number(name: str) -> int | None:
        return read_positive_int(level, (name,), where)

    if kind == "state":
        return Layer(state_bytes=_state_bytes(level, where))
    rank = number("kv_lora_rank")
    if rank is not None:
        if kind != "full":
            raise UnknownLayersError("it has latent attention with windows")
        rotary = number("qk_rope_head_dim") or 0
        if (index := number("index_head_dim")) is None:
            return Layer(1, rank + rotary)
        scaled = [width + 4 * -(-width // 128) for width in (index, rank)]  # 32-bit scales
        return Layer(1, rank + rotary, index_bytes=scaled[0], fp8_bytes=scaled[1] + 2 * rotary)
    if number("v_head_dim") not in (None, shape.head_width):
        raise UnknownLayersError("its keys and values have different widths")
    heads = shape.key_value_heads
    width = shape.head_width
    window = None
    if kind == "full":  # Gemma 4: global layers have fewer and wider heads
        heads = number("num_global_key_value_heads") or heads
        width = number("global_head_dim") or width
    elif kind == "chunked":
        window = number("attention_chunk_size")
    elif level.get("use_sliding_window") is not False:
        window = number("sliding_window")
    return Layer(heads, 2 * width, window)


def _kinds(level: dict[str, Any], layers: int, where: str) -> list[Kind]:
    """Return each layer's kind."""
    if (words := level.get("layer_types")) is not None:
        if not isinstance(words, list) or len(words) != layers:
            raise CheckpointError(
                f"config.json has {layers} layers, and layer_types is not a list of as many",
                where=f"{where}, key layer_types",
                hint="download config.json again",
            )
        if unread := [w for w in words if not isinstance(w, str) or w not in WORDS]:
            raise UnknownLayersError(f"a layer's kind in layer_types is '{str(unread[0])[:40]}'")
        return [WORDS[word] for word in words]
    if every := read_positive_int(level, ("full_attention_interval",), where):
        return ["state" if (number + 1) % every else "full" for number in range(layers)]
    if level.get("attention_chunk_size") and (flags := level.get("no_rope_layers")) is not None:
        # An empty list is transformers' default of Llama 4.
        flags = flags or [(number + 1) % 4 for number in range(layers)]
        if not isinstance(flags, list) or len(flags) != layers:
            raise UnknownLayersError("no_rope_layers does not have one flag for each layer")
        return ["chunked" if flag else "full" for flag in flags]
    if level.get("linear_num_value_heads"):
        raise UnknownLayersError("nothing tells which layers have attention")
    window = read_positive_int(level, ("sliding_window",), where)
    if window is None or level.get("use_sliding_window") is False:
        return ["full"] * layers
    if isinstance(pattern := level.get("sliding_window_pattern"), str):
        raise UnknownLayersError(f"sliding_window_pattern is '{pattern[:40]}'")
    every = read_positive_int(level, ("sliding_window_pattern", "_sliding_window_pattern"), where)
    if every := every or PERIODS.get(str(level.get("model_type"))):
        return ["sliding" if (number + 1) % every else "full" for number in range(layers)]
    first = level.get("max_window_layers") if level.get("use_sliding_window") is True else 0
    first = first if type(first) is int and first >= 0 else 0  # Qwen 2
    return ["full" if number < first else "sliding" for number in range(layers)]


def _state_bytes(level: dict[str, Any], where: str) -> int:
    """Return the bytes of a gated delta net's state for one sequence.

    As `MambaStateShapeCalculator` of vLLM 0.33.
    """
    numbers = [
        read_positive_int(level, (f"linear_{name}",), where)
        for name in (
            *("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim"),
            "conv_kernel_dim",
        )
    ]
    keys, key_width, heads, width, kernel = (number or 0 for number in numbers)
    if not all(numbers):
        raise UnknownLayersError("the state of its layers without attention is not known")
    size = {"bfloat16": 2, "float16": 2, "float32": 4}.get(str(level.get("mamba_ssm_dtype")), 2)
    convolved = (kernel - 1) * (2 * keys * key_width + heads * width)
    return 2 * convolved + heads * width * key_width * size

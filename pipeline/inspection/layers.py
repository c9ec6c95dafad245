"""Memory of each decoder layer for one sequence, from config.json: keys, values and states.

A sequence takes a sum of bytes over layers. `docs/reference/kv-cache.md` compares it with vLLM's
own count for published models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.core.errors import CheckpointError
from pipeline.inspection.model_shape import ModelShape, read_positive_int, text_level

Kind = Literal["full", "sliding", "chunked", "state", "parallel", "none"]
"""`parallel` has attention and a state (Falcon-H1); `none` has no cache: an MLP or experts."""

# Words of `layer_types` and `layers_block_type`, and letters of `hybrid_override_pattern`.
WORDS: dict[Any, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "mlp": "none",
    "moe": "none",
}
LETTERS: dict[str, Kind] = {"*": "full", "M": "state", "-": "none", "E": "none"}
# Keys of layers of several kinds, or of other widths, that are not read here.
UNREAD = (
    *("attention_other_setting", "compress_ratios", "per_layer_config", "swa_head_dim"),
    "swa_num_key_value_heads",
)
# Keys that announce layers of several kinds. Without a pattern that is read here, they are unknown.
SIGNS = (
    *("attn_layer_indices", "attn_type_list", "block_types", "hybrid_layer_pattern"),
    *("layer_group_size", "linear_num_value_heads", "mamba_d_state", "mixer_types"),
    *("sparse_attention_config", "ssm_state_size", "state_size", "time_mix_extra_dim"),
)
# The period of full attention that transformers' classes use where config.json has none.
PERIODS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
# Models whose latent projections the engine expands to full heads before caching.
EXPANDED_LATENT = ("minicpm3",)
# vLLM keeps up to three blocks of a layer's state for one sequence.
STATE_BLOCKS = 3
ELEMENT_BYTES: dict[str, float] = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    # With a 32-bit scale for each token's key and value of a head; fewer bytes above 64 elements.
    "fp8_per_token_head": 1 + 4 / 64,
}


class UnknownLayersError(Exception):
    """The config describes its layers in a way that is not read here; the message tells which."""


@dataclass(frozen=True)
class Layer:
    """What one decoder layer keeps for a sequence."""

    heads: int = 0  # key-value heads; 1 for latent attention, 0 without attention
    width: int = 0  # elements of one head for one token: key and value, or the latent vector
    window: int | None = None  # tokens that the layer looks back; None for all
    index_bytes: int = 0  # of a sparse index, for one token on each GPU
    # Bytes of one token in FP8 where an element is not a byte: sparse latent attention keeps
    # scales, and the rotary part in 16 bits.
    fp8_bytes: int | None = None
    state_bytes: int = 0  # fixed state of one sequence, divided by the GPUs

    def token_bytes(self, element_bytes: float, gpus: int = 1) -> int:
        """Return the bytes of one token on each GPU; more GPUs than heads replicate heads."""
        if not self.heads:
            return 0
        if element_bytes == 1 and self.fp8_bytes is not None:
            return self.fp8_bytes + self.index_bytes
        heads = max(1, self.heads // gpus)
        return math.ceil(heads * self.width * element_bytes) + self.index_bytes

    def sequence_bytes(
        self, context: int, element_bytes: float, gpus: int, block: int, held: int
    ) -> int:
        """Return the bytes of one sequence on each GPU.

        Args:
            context: tokens of the sequence.
            block: tokens of a block of the cache.
            held: tokens in flight, which a layer with a window keeps as well.
        """
        tokens = context if self.window is None else min(context, self.window + held)
        blocks = -(-tokens // block) * block * self.token_bytes(element_bytes, gpus)
        return blocks + -(-STATE_BLOCKS * self.state_bytes // gpus)


def sequence_bytes(
    layers: Sequence[Layer],
    context: int,
    element_bytes: float,
    *,
    gpus: int = 1,
    block: int = 16,
    held: int = 0,
) -> int:
    """Return the bytes of one sequence in all layers, on each GPU."""
    return sum(one.sequence_bytes(context, element_bytes, gpus, block, held) for one in layers)


def read_layers(config: dict[str, Any], shape: ModelShape, where: str) -> tuple[Layer, ...]:
    """Return what each decoder layer keeps.

    Raises:
        UnknownLayersError: the config follows a pattern that is not read here.
        CheckpointError: a value is invalid.
    """
    level = text_level(config)
    if found := next((key for key in UNREAD if level.get(key)), None):
        raise UnknownLayersError(f"its layers follow {found}")
    kinds = _kinds(level, shape.layers, where)
    state = _state_bytes(level, shape, where) if {"state", "parallel"} & {*kinds} else 0
    layers = [_layer(level, shape, kind, state, where) for kind in kinds]
    # The last layers use earlier layers' keys and values (Gemma 3n and 4).
    shared = level.get("num_kv_shared_layers") or 0
    own = len(layers) - (shared if type(shared) is int else 0)
    if not any(layer.heads for layer in layers[:own]):
        raise UnknownLayersError("no layer has attention")
    return tuple(layers[:own])


def _layer(level: dict[str, Any], shape: ModelShape, kind: Kind, state: int, where: str) -> Layer:
    def number(*names: str) -> int | None:
        return read_positive_int(level, names, where)

    if kind == "none":
        return Layer()
    if kind == "state":
        return Layer(state_bytes=state)
    rank = number("kv_lora_rank")
    if rank is not None:
        if kind != "full":
            raise UnknownLayersError("it has latent attention with windows")
        rotary = number("qk_rope_head_dim") or 0
        if shape.model_type in EXPANDED_LATENT:
            return Layer(shape.heads, 2 * ((number("qk_nope_head_dim") or 0) + rotary))
        if (index := number("index_head_dim")) is None:
            return Layer(1, rank + rotary)
        scaled = [width + 4 * -(-width // 128) for width in (index, rank)]  # 32-bit scales
        return Layer(1, rank + rotary, index_bytes=scaled[0], fp8_bytes=scaled[1] + 2 * rotary)
    if number("v_head_dim") not in (None, shape.head_width):
        raise UnknownLayersError("its keys and values have different widths")
    heads, width, window = shape.key_value_heads, shape.head_width, None
    if kind == "full":  # Gemma 4: global layers have fewer and wider heads
        heads = number("num_global_key_value_heads") or heads
        width = number("global_head_dim") or width
    elif kind == "chunked":
        window = number("attention_chunk_size")
    elif kind == "sliding" and level.get("use_sliding_window") is not False:
        window = number("sliding_window")
    return Layer(heads, 2 * width, window, state_bytes=state if kind == "parallel" else 0)


def _kinds(level: dict[str, Any], layers: int, where: str) -> list[Kind]:
    """Return the kind of each layer, in each of the ways that a config.json can name it."""
    if level.get("model_type") == "falcon_h1":
        return ["parallel"] * layers
    key = "layer_types" if level.get("layer_types") is not None else "layers_block_type"
    if (words := level.get(key)) is not None:
        if not isinstance(words, list) or len(words) != layers:
            raise CheckpointError(
                f"config.json has {layers} layers, and {key} is not a list of as many",
                where=f"{where}, key {key}",
                hint="download config.json again",
            )
        return [_word(word, key) for word in words]
    if (letters := level.get("hybrid_override_pattern")) is not None:
        if not isinstance(letters, str) or len(letters) != layers or not {*letters} <= {*LETTERS}:
            raise UnknownLayersError(f"hybrid_override_pattern is {str(letters)[:60]!r}")
        return [LETTERS[letter] for letter in letters]
    full = _full_layers(level, layers, where)
    if full is not None:
        return ["full" if number in full else "state" for number in range(layers)]
    if chunk := level.get("attention_chunk_size"):
        flags = level.get("no_rope_layers")
        if flags == []:  # transformers' default of Llama 4
            flags = [(number + 1) % 4 for number in range(layers)]
        if flags is not None:
            if not isinstance(flags, list) or len(flags) != layers or not chunk:
                raise UnknownLayersError("no_rope_layers does not have one flag for each layer")
            return ["chunked" if flag else "full" for flag in flags]
    if found := next((key for key in SIGNS if _has_several_kinds(level.get(key))), None):
        raise UnknownLayersError(f"its layers follow {found}")
    return _windows(level, layers, where)


def _word(word: Any, key: str) -> Kind:
    if not isinstance(word, str) or word not in WORDS:
        raise UnknownLayersError(f"a layer's kind in {key} is '{str(word)[:40]}'")
    return WORDS[word]


def _has_several_kinds(value: Any) -> bool:
    return bool(value) and not (isinstance(value, list) and set(map(str, value)) == {"1"})


def _full_layers(level: dict[str, Any], layers: int, where: str) -> set[int] | None:
    """Return the layers with attention among those with a state; None without such a pattern."""
    if isinstance(linear := level.get("linear_attn_config"), dict):  # Kimi Linear counts from one
        full, states = linear.get("full_attn_layers"), linear.get("kda_layers")
        if sorted([*_numbers(full), *_numbers(states)]) != list(range(1, layers + 1)):
            raise UnknownLayersError("linear_attn_config does not name each layer once")
        return {number - 1 for number in _numbers(full)}
    if level.get("full_attn_idxs") is not None:  # LFM2
        return {*_numbers(level["full_attn_idxs"])}
    if every := read_positive_int(level, ("full_attention_interval",), where):
        return {*range(every - 1, layers, every)}
    if every := read_positive_int(level, ("attn_layer_period",), where):  # Jamba
        offset = level.get("attn_layer_offset", 0)
        return {number for number in range(layers) if number % every == offset}
    return None


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise UnknownLayersError("a list of layers is not a list of numbers")
    return value


def _windows(level: dict[str, Any], layers: int, where: str) -> list[Kind]:
    """Return windows in all layers, in all except every n-th, or in those after some layer."""
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


def _state_bytes(level: dict[str, Any], shape: ModelShape, where: str) -> int:
    """Return the state of a layer for one sequence, as `MambaStateShapeCalculator` of vLLM 0.33.

    Raises:
        UnknownLayersError: the shape of the state is not known.
    """
    inner = level.get("linear_attn_config")

    def numbers(*keys: tuple[str, ...], of: dict[str, Any] = level) -> list[int] | None:
        found = [read_positive_int(of, names, where) for names in keys]
        return None if None in found else [each for each in found if each is not None]

    def wide(key: str, *, float32: bool = False) -> int:
        return {"float32": 4, "bfloat16": 2, "float16": 2}.get(
            str(level.get(key)), 4 if float32 else 2
        )

    if found := numbers(  # gated delta nets: Qwen3-Next and Qwen3.5
        *(("linear_num_key_heads",), ("linear_key_head_dim",), ("linear_num_value_heads",)),
        *(("linear_value_head_dim",), ("linear_conv_kernel_dim",)),
    ):
        keys, key_width, heads, width, kernel = found
        convolved = (kernel - 1) * (2 * keys * key_width + heads * width)
        return 2 * convolved + heads * width * key_width * wide("mamba_ssm_dtype")
    if isinstance(inner, dict) and (
        found := numbers(("num_heads",), ("head_dim",), ("short_conv_kernel_size",), of=inner)
    ):  # Kimi Linear
        heads, width, kernel = found
        return 2 * (kernel - 1) * 3 * heads * width + 4 * heads * width * width
    if found := numbers(  # Mamba 2: Nemotron-H, Granite 4, Bamba and Falcon-H1
        *(("mamba_num_heads", "mamba_n_heads"), ("ssm_state_size", "mamba_d_state")),
        *(("n_groups", "mamba_n_groups"), ("conv_kernel", "mamba_d_conv")),
    ):
        heads, state, groups, kernel = found
        expanded = (read_positive_int(level, ("mamba_expand", "expand"), where) or 2) * shape.hidden
        head = read_positive_int(level, ("mamba_head_dim", "mamba_d_head"), where)
        width = head or expanded // heads
        convolved = (kernel - 1) * (heads * width + 2 * groups * state)
        is_nemotron = level.get("model_type") == "nemotron_h"
        size = wide("mamba_ssm_cache_dtype", float32=is_nemotron)
        return 2 * convolved + heads * width * state * size
    if found := numbers(("mamba_expand",), ("mamba_d_state",), ("mamba_d_conv",)):  # Jamba
        expand, state, kernel = found
        return 2 * expand * shape.hidden * (kernel - 1 + state)
    if found := numbers(("conv_L_cache",)):  # LFM2
        return 2 * (found[0] - 1) * shape.hidden
    raise UnknownLayersError("the state of its layers without attention is not known")

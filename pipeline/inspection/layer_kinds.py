"""Kind of cache of each decoder layer, in each of the ways that a config.json can name it."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.core.errors import CheckpointError
from pipeline.inspection.model_shape import read_positive_int

LayerKind = Literal["full", "sliding", "chunked", "state", "parallel", "none"]
"""`parallel` has attention and a state (Falcon-H1); `none` has no cache: an MLP or experts."""

# Words of `layer_types` and `layers_block_type`, and letters of `hybrid_override_pattern`.
WORDS: dict[str, LayerKind] = {
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
LETTERS: dict[str, LayerKind] = {"*": "full", "M": "state", "-": "none", "E": "none"}
# Keys by which models announce layers of several kinds. A config with one of them, and without a
# pattern that is read here, is not known.
SIGNS = (
    "attn_layer_indices",
    "attn_type_list",
    "block_types",
    "hybrid_layer_pattern",
    "layer_group_size",
    "linear_num_value_heads",
    "mamba_d_state",
    "mixer_types",
    "sparse_attention_config",
    "ssm_state_size",
    "state_size",
    "time_mix_extra_dim",
)
# The period of full attention that transformers' classes use where config.json has none.
PERIODS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}


class UnknownPatternError(Exception):
    """The config describes its layers in a way that is not known here; the message says how."""


def layer_kinds(level: dict[str, Any], layers: int, where: str) -> list[LayerKind]:
    """Return the kind of each layer.

    Raises:
        UnknownPatternError: a word or a pattern is not known.
        CheckpointError: a value is invalid, or a list does not have one entry for each layer.
    """
    if level.get("model_type") == "falcon_h1":
        return ["parallel"] * layers
    for read in (_by_names, _by_letters, _by_numbers, _by_period):
        if (found := read(level, layers, where)) is not None:
            return found
    if signs := [key for key in SIGNS if _says_something(level.get(key))]:
        raise UnknownPatternError(f"its layers follow {signs[0]}")
    return _by_window(level, layers, where)


def _says_something(value: Any) -> bool:
    """Return whether a sign has a value that is not that of layers of one kind."""
    return bool(value) and not (isinstance(value, list) and set(map(str, value)) == {"1"})


def _by_names(level: dict[str, Any], layers: int, where: str) -> list[LayerKind] | None:
    key = "layer_types" if level.get("layer_types") is not None else "layers_block_type"
    words = level.get(key)
    if words is None:
        return None
    if not isinstance(words, list) or len(words) != layers:
        raise CheckpointError(
            f"config.json has {layers} layers, and {key} is not a list of as many",
            where=f"{where}, key {key}",
            hint="download config.json again",
        )
    unknown = [word for word in words if not isinstance(word, str) or word not in WORDS]
    if unknown:
        raise UnknownPatternError(f"a layer's kind in {key} is '{str(unknown[0])[:40]}'")
    return [WORDS[word] for word in words]


def _by_letters(level: dict[str, Any], layers: int, where: str) -> list[LayerKind] | None:
    pattern = level.get("hybrid_override_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or len(pattern) != layers or not set(pattern) <= set(LETTERS):
        raise UnknownPatternError(f"hybrid_override_pattern is {str(pattern)[:60]!r}")
    return [LETTERS[letter] for letter in pattern]


def _by_numbers(level: dict[str, Any], layers: int, where: str) -> list[LayerKind] | None:
    """Read the layers with full attention from a list of their numbers."""
    if isinstance(linear := level.get("linear_attn_config"), dict):  # Kimi Linear counts from one
        full, states = linear.get("full_attn_layers"), linear.get("kda_layers")
        if sorted([*_numbers(full), *_numbers(states)]) != list(range(1, layers + 1)):
            raise UnknownPatternError("linear_attn_config does not name each layer once")
        return ["full" if number in _numbers(full) else "state" for number in range(1, layers + 1)]
    if level.get("full_attn_idxs") is not None:  # LFM2
        full = _numbers(level["full_attn_idxs"])
        return ["full" if number in full else "state" for number in range(layers)]
    without = level.get("no_rope_layers")
    if without is None or not (chunk := level.get("attention_chunk_size")):
        return None
    if without == [] and chunk:  # transformers' default of Llama 4
        return ["chunked" if (number + 1) % 4 else "full" for number in range(layers)]
    flags = _numbers(without)
    if len(flags) != layers:
        raise UnknownPatternError("no_rope_layers does not have one flag for each layer")
    return ["chunked" if flag else "full" for flag in flags]


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise UnknownPatternError("a list of layers is not a list of numbers")
    return value


def _by_period(level: dict[str, Any], layers: int, where: str) -> list[LayerKind] | None:
    if every := read_positive_int(level, ("full_attention_interval",), where):
        return ["state" if (number + 1) % every else "full" for number in range(layers)]
    if every := read_positive_int(level, ("attn_layer_period",), where):  # Jamba
        offset = level.get("attn_layer_offset", 0)
        return ["full" if number % every == offset else "state" for number in range(layers)]
    return None


def _by_window(level: dict[str, Any], layers: int, where: str) -> list[LayerKind]:
    """Return all, all except every n-th, or those after some layer."""
    window = read_positive_int(level, ("sliding_window",), where)
    if window is None or level.get("use_sliding_window") is False:
        return ["full"] * layers
    if isinstance(pattern := level.get("sliding_window_pattern"), str):
        raise UnknownPatternError(f"sliding_window_pattern is '{pattern[:40]}'")
    every = read_positive_int(level, ("sliding_window_pattern", "_sliding_window_pattern"), where)
    every = every or PERIODS.get(str(level.get("model_type")))
    if every is not None:
        return ["sliding" if (number + 1) % every else "full" for number in range(layers)]
    if level.get("use_sliding_window") is True:  # Qwen 2: the first layers have full attention
        first = level.get("max_window_layers")
        first = first if type(first) is int and first >= 0 else 0
        return ["full" if number < first else "sliding" for number in range(layers)]
    return ["sliding"] * layers

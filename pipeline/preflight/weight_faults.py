"""Faults of a checkpoint's matrices: names and shapes that config.json does not describe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.module_kind import HEADS, VISION, is_tied
from recipes.checkpoints.source_format import quantization_configs
from recipes.checkpoints.weight_files import INDEX
from recipes.weights.accounting import EMBEDDING

# Prefixes of torch.compile, DistributedDataParallel and PEFT.
COMPILED = "_orig_mod."
WRAPPERS: Mapping[str, str] = {
    COMPILED: "torch.compile",
    "module.": "DistributedDataParallel",
    "base_model.model.": "PEFT",
}
# Decoders whose matrices have the shapes of `_expected_shapes`.
PLAIN_TYPES = (
    "cohere cohere2 gemma gemma2 gemma3_text glm4 granite llama mistral mixtral olmo olmo2 olmo3 "
    "qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 stablelm starcoder2"
)
# Types whose class has another default than hidden_size / num_attention_heads.
OWN_HEAD_DIM = ("gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe", "seed_oss")
# Types whose class does not tie the head if config.json lacks the key.
UNTIED_BY_DEFAULT = (
    "deepseek_v2 deepseek_v3 exaone4 glm4 glm4_moe gpt_oss granite llama mistral mixtral olmo "
    "olmo2 olmo3 phi3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss stablelm"
)
_LAYER_MATRIX = re.compile(r"(?:.*\.)?layers\.\d+\.((?:self_attn|mlp)\.\w+\.weight)")
RENAME = (
    "save the whole model again with save_pretrained(), or rename the tensors by safetensors' "
    "load_file() and save_file(), and in the index's weight_map, if there is one"
)


def weight_faults(source: Checkpoint) -> Iterator[CheckpointError]:
    """Yield what names and shapes of the tensors show, by one fault of each kind."""
    if fault := _prefix_fault(source):
        yield fault
        return  # all names are others than expected
    for fault in (_head_fault(source), _shape_fault(source), _vision_fault(source)):
        if fault is not None:
            yield fault
    if source.index is not None and not isinstance(source.index.get("metadata"), dict):
        yield CheckpointError(
            "the index has no 'metadata', without which transformers does not load the weights",
            where=f"{Path(source.where).with_name(INDEX)}, key metadata",
            hint='add "metadata": {} to the index of a copy',
        )


def _prefix_fault(source: Checkpoint) -> CheckpointError | None:
    """Return the fault of names that no loader looks for: it would start with random weights."""
    for prefix, wrapper in WRAPPERS.items():
        named = [name for name in source.tensors if f".{prefix}" in f".{name}"]
        is_whole = len(named) == len(source.tensors)
        if named and (prefix == COMPILED or is_whole):  # torch.compile may wrap a part
            return CheckpointError(
                f"the tensors' names have the prefix '{prefix}' of {wrapper}, such as "
                f"'{named[0]}': loaders would fill the model with random numbers",
                where=source.where,
                hint=RENAME,
            )
    if "embed_tokens.weight" in source.tensors and source.architecture.endswith("ForCausalLM"):
        return CheckpointError(
            "the tensors' names lack the prefix 'model.', such as 'embed_tokens.weight': the "
            f"weights were saved from the inner model, and {source.architecture} has others",
            where=f"{source.where}, key architectures",
            hint=RENAME,
        )
    return None


def _head_fault(source: Checkpoint) -> CheckpointError | None:
    config = source.config
    if any(part in HEADS for name in source.tensors for part in name.split(".")):
        return None
    is_stated = "tie_word_embeddings" in config or "text_config" in config
    is_untied = is_stated or config.get("model_type") in UNTIED_BY_DEFAULT.split()
    embedding = next(filter(EMBEDDING.fullmatch, source.tensors), "")
    if is_tied(config) or not is_untied or not embedding.endswith("embed_tokens.weight"):
        return None
    return CheckpointError(
        "no output head is stored ('lm_head.weight'), and config.json does not tie it to the "
        "embedding: libraries differ in whether they make up a random one",
        where=f"{source.where}, key tie_word_embeddings",
        hint='if the model has a tied head, set "tie_word_embeddings": true in a copy\'s '
        "config.json; otherwise save it again with its head",
    )


def _shape_fault(source: Checkpoint) -> CheckpointError | None:
    """Return the first matrix whose shape is not config.json's."""
    if next(quantization_configs(source.config), None) is not None:
        return None  # packed matrices have other shapes
    inner = source.config.get("text_config")
    level = inner if isinstance(inner, dict) else source.config
    if level.get("model_type") not in PLAIN_TYPES.split() or "block_configs" in level:
        return None
    expected = _expected_shapes(level)
    for name, tensor in source.tensors.items():
        if _is_of_images(name):
            continue
        match = _LAYER_MATRIX.fullmatch(name)
        key = match[1] if match else "embed" if EMBEDDING.fullmatch(name) else ""
        for axis, (keys, size) in expected.get(key, {}).items():
            if len(tensor.shape) == 2 and tensor.shape[axis] != size:
                return CheckpointError(
                    f"'{name}' has the shape {' x '.join(map(str, tensor.shape))}, and config.json "
                    f"describes {size:,} {('rows', 'columns')[axis]} ({keys})",
                    where=f"{source.where}, key {keys}",
                    hint="correct the key in a copy's config.json, or save the checkpoint again "
                    "with save_pretrained()",
                )
    return None


Axes = dict[int, tuple[str, int]]  # by axis: keys of config.json, and their number


def _expected_shapes(level: Mapping[str, Any]) -> dict[str, Axes]:
    """Return the sizes that config.json states, by matrix."""
    hidden = _number(level, "hidden_size")
    vocabulary = _number(level, "vocab_size")
    inner = _number(level, "intermediate_size")
    heads = _number(level, "num_attention_heads")
    narrow_heads = _number(level, "num_key_value_heads")
    width = _number(level, "head_dim")
    keys = "num_key_value_heads, head_dim"
    if width is None and hidden and heads and level.get("model_type") not in OWN_HEAD_DIM:
        width = hidden // heads
        keys = "num_key_value_heads, hidden_size, num_attention_heads"
    axes: dict[str, Axes] = {}

    def expect(name: str, axis: int, key: str, size: int | None) -> None:
        if size is not None:
            axes.setdefault(name, {})[axis] = (key, size)

    expect("embed", 0, "vocab_size", vocabulary)
    expect("embed", 1, "hidden_size", hidden)
    narrow = narrow_heads * width if narrow_heads and width else None
    for leaf in ("k_proj", "v_proj"):
        expect(f"self_attn.{leaf}.weight", 1, "hidden_size", hidden)
        expect(f"self_attn.{leaf}.weight", 0, keys, narrow)
    for leaf in ("gate_proj", "up_proj"):
        expect(f"mlp.{leaf}.weight", 1, "hidden_size", hidden)
        expect(f"mlp.{leaf}.weight", 0, "intermediate_size", inner)
    expect("mlp.down_proj.weight", 1, "intermediate_size", inner)
    return axes


def _number(level: Mapping[str, Any], key: str) -> int | None:
    value = level.get(key)
    return value if type(value) is int and value > 0 else None


def _is_of_images(name: str) -> bool:
    return any(part.startswith(VISION) for part in name.split("."))


def _vision_fault(source: Checkpoint) -> CheckpointError | None:
    if not isinstance(source.config.get("vision_config"), dict) or not source.tensors:
        return None
    if any(map(_is_of_images, source.tensors)):
        return None
    return CheckpointError(
        "config.json describes a model of images and text, and no tensor is of its image part",
        where=f"{source.where}, key vision_config",
        hint="save the text model alone with its own config.json (the content of text_config), or "
        "download the checkpoint again",
    )

"""Decides for each source tensor: quantized, kept, left out, or a reason to refuse the stream.

It uses names, shapes and config.json alone, where llm-compressor uses a built model's modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.core.errors import StageError
from pipeline.inspection.linear_layers import (
    WEIGHT,
    is_head,
    is_linear_weight,
    is_quantizable,
    is_tied,
)
from pipeline.inspection.module_kind import STACKED_EXPERTS, is_expert_stack
from recipes.ignored_modules import is_ignored

CASTABLE = ("BF16", "F16", "F32")
# transformers' Conv1D layers: no linear layers to llm-compressor, and stored transposed.
TRANSPOSED_ARCHITECTURES = ("gpt2", "openai-gpt", "ctrl", "imagegpt", "decision_transformer")


def check_supported(
    tensors: Mapping[str, TensorEntry], config: dict[str, Any], ignore: list[str], source: Path
) -> None:
    """Refuse checkpoints whose names and shapes do not determine how to quantize them.

    Raises:
        StageError: transposed or already quantized layers, a tied lm_head that the recipe does
            not ignore, or nothing to quantize.
    """
    architecture = config.get("model_type")
    if architecture in TRANSPOSED_ARCHITECTURES:
        raise StageError(
            f"'{architecture}' stores its layers transposed: there is nothing to quantize",
            where=f"{source / 'config.json'}, key model_type",
            hint="none of llm-compressor's recipes quantizes these layers; use the baseline",
        )
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, ignore, source)
    if is_tied(config) and not is_ignored("lm_head", ignore):
        raise StageError(
            "lm_head is the embedding, and cannot be quantized alone",
            where=f"{source / 'config.json'}, key tie_word_embeddings",
            hint="put lm_head into the recipe's quantization.ignore",
        )
    if not any(is_quantizable(name, tensor, ignore) for name, tensor in tensors.items()):
        raise StageError(
            "no tensor of the checkpoint is to be quantized",
            where=str(source),
            hint="the recipe's quantization.ignore means all linear layers; shorten it",
        )


def tied_pair(tensors: Mapping[str, TensorEntry], config: dict[str, Any]) -> tuple[str, str] | None:
    """Return the names of lm_head and of the embedding that it may repeat, if any."""
    if not is_tied(config):
        return None
    heads = [name for name in tensors if is_head(name)]
    for head in heads:
        for name, tensor in tensors.items():
            if name.endswith("embed_tokens.weight") and tensor.shape == tensors[head].shape:
                return head, name
    return None


def kept_layers(tensors: Mapping[str, TensorEntry], ignore: list[str]) -> list[str]:
    """Return modules that stay unquantized, so that the engine expects that.

    Experts in stacks stay: which of a stack's axes are rows differs by architecture.
    """
    kept = [
        name.removesuffix(WEIGHT)
        for name, tensor in tensors.items()
        if is_linear_weight(name, tensor) and not is_quantizable(name, tensor, ignore)
    ]
    stacked = any(is_expert_stack(name, len(tensor.shape)) for name, tensor in tensors.items())
    return [*kept, STACKED_EXPERTS] if stacked else kept


def _check_tensor(name: str, tensor: TensorEntry, ignore: list[str], source: Path) -> None:
    if is_quantizable(name, tensor, ignore):
        if tensor.dtype not in CASTABLE:
            raise StageError(
                f"'{name}' is stored as {tensor.dtype}, and only {', '.join(CASTABLE)} are cast",
                where=str(source),
                hint="start from the unquantized checkpoint",
            )
        if not tensor.elements:
            raise StageError(f"'{name}' has the shape {list(tensor.shape)}", where=str(source))

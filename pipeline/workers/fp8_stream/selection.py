"""What becomes of each source tensor: quantized, kept, left out, or a reason to refuse the stream.

By names, shapes and config.json alone; what llm-compressor decides by the modules of a built model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import StageError
from pipeline.ignored_modules import is_ignored
from pipeline.inspection.linear_layers import WEIGHT, is_linear_weight, is_quantizable, is_tied
from pipeline.safetensors_header import Tensor, read_header
from pipeline.weight_files import weight_files

CASTABLE = ("BF16", "F16", "F32")
# transformers' Conv1D layers: no linear layers to llm-compressor, and stored transposed.
TRANSPOSED_ARCHITECTURES = ("gpt2", "openai-gpt", "ctrl", "imagegpt", "decision_transformer")
STACKED_EXPERTS = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
ONESHOT = "use a recipe with calibration, which builds the model"


def check_supported(
    tensors: Mapping[str, Tensor], config: dict[str, Any], ignore: list[str], source: Path
) -> None:
    """Refuse what names and shapes cannot tell how to quantize.

    Raises:
        StageError: stacked experts, transposed or already quantized layers, a tied lm_head that
            the recipe does not ignore, or nothing to quantize.
    """
    architecture = config.get("model_type")
    if architecture in TRANSPOSED_ARCHITECTURES:
        raise StageError(
            f"'{architecture}' stores its layers transposed: FP8 has nothing to quantize there",
            where=f"{source / 'config.json'}, key model_type",
            cure="none of llm-compressor's recipes quantizes these layers; use the baseline",
        )
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, ignore, source)
    if is_tied(config) and not is_ignored("lm_head", ignore):
        raise StageError(
            "lm_head is the embedding, and cannot be quantized alone",
            where=f"{source / 'config.json'}, key tie_word_embeddings",
            cure="put lm_head into the recipe's quantization.ignore",
        )
    if not any(is_quantizable(name, tensor, ignore) for name, tensor in tensors.items()):
        raise StageError(
            "no tensor of the checkpoint is to be quantized",
            where=str(source),
            cure="the recipe's quantization.ignore means all linear layers; shorten it",
        )


def has_stacked_experts(source: Path, ignore: list[str]) -> bool:
    """Whether a checkpoint keeps the matrices of several experts in one tensor."""
    return any(
        _holds_experts(name, tensor, ignore)
        for file in weight_files(source)
        for name, tensor in read_header(file).tensors.items()
    )


def tied_pair(tensors: Mapping[str, Tensor], config: dict[str, Any]) -> tuple[str, str] | None:
    """Names of lm_head and of the embedding it may repeat; None where there is no such pair."""
    if not is_tied(config):
        return None
    heads = [name for name in tensors if name.endswith("lm_head.weight")]
    for head in heads:
        for name, tensor in tensors.items():
            if name.endswith("embed_tokens.weight") and tensor.shape == tensors[head].shape:
                return head, name
    return None


def kept_layers(tensors: Mapping[str, Tensor], ignore: list[str]) -> list[str]:
    """Modules of linear layers that stay as they are: what the engine has to be told."""
    return [
        name.removesuffix(WEIGHT)
        for name, tensor in tensors.items()
        if is_linear_weight(name, tensor) and not is_quantizable(name, tensor, ignore)
    ]


def _check_tensor(name: str, tensor: Tensor, ignore: list[str], source: Path) -> None:
    if _holds_experts(name, tensor, ignore):
        raise StageError(
            f"'{name}' holds the matrices of several experts, {list(tensor.shape)}: which of its "
            "axes are rows differs by architecture",
            where=str(source),
            cure=f"{ONESHOT}, or a checkpoint with a matrix an expert",
        )
    if is_quantizable(name, tensor, ignore):
        if tensor.dtype not in CASTABLE:
            raise StageError(
                f"'{name}' is stored as {tensor.dtype}, and only {', '.join(CASTABLE)} are cast",
                where=str(source),
                cure="start from the unquantized checkpoint",
            )
        if not tensor.elements:
            raise StageError(f"'{name}' has the shape {list(tensor.shape)}", where=str(source))


def _holds_experts(name: str, tensor: Tensor, ignore: list[str]) -> bool:
    module = name.removesuffix(WEIGHT)
    is_stack = module.rpartition(".")[2] in STACKED_EXPERTS or ".experts." in f".{module}."
    return len(tensor.shape) == 3 and is_stack and not is_ignored(module, ignore)

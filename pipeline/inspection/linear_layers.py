"""Which tensors of a checkpoint are matrices of linear layers that a recipe quantizes."""

from __future__ import annotations

from pipeline.ignored_modules import is_ignored
from pipeline.safetensors_header import Tensor


def is_quantizable(name: str, tensor: Tensor, ignore: list[str]) -> bool:
    """Whether the recipe quantizes this source tensor: a linear layer's matrix, not ignored."""
    if not name.endswith(".weight") or len(tensor.shape) != 2:
        return False
    module = name.removesuffix(".weight")
    if "embed" in module.rpartition(".")[2] or module.endswith((".wte", ".wpe")):
        return False
    return not is_ignored(module, ignore)

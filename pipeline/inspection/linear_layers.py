"""Which source tensors a recipe quantizes; without torch, since stages and workers ask it."""

from __future__ import annotations

from pipeline.ignored_modules import is_ignored
from pipeline.safetensors_header import Tensor

WEIGHT = ".weight"


def is_quantizable(name: str, tensor: Tensor, ignore: list[str]) -> bool:
    """Whether the recipe quantizes this source tensor: a linear layer's matrix, not ignored."""
    return is_linear_weight(name, tensor) and not is_ignored(name.removesuffix(WEIGHT), ignore)


def is_linear_weight(name: str, tensor: Tensor) -> bool:
    """Whether it is a linear layer's matrix, as far as name and shape tell: no embedding."""
    if not name.endswith(WEIGHT) or len(tensor.shape) != 2:
        return False
    module = name.removesuffix(WEIGHT)
    return "embed" not in module.rpartition(".")[2] and not module.endswith((".wte", ".wpe"))

"""A model computed in 32 bits and stored in its original types.

On a CPU without native bf16 torch emulates it: a linear layer takes five times as long as in
float32, a batched matmul of attention fifty times.
"""

from __future__ import annotations

from typing import Any


class ComputeDtype:
    """The floating-point type of a model's tensors during calibration; None leaves it unchanged."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._stored: dict[str, Any] = {}
        self._model_type: Any = None

    def widen(self, model: Any) -> None:
        """Convert the model's 16-bit tensors to 32 bits; the values are the same."""
        import torch

        if self.name != "float32":
            return
        self._model_type = model.dtype
        for name, tensor in tensors_of(model):
            self._stored[name] = tensor.dtype
            if tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.to(torch.float32)

    def narrow(self, model: Any) -> None:
        """Convert widened tensors back before packing; new tensors get the model's type.

        Weights and scales are rounded first and quantized after, as in a 16-bit calibration.
        """
        import torch

        if self.name != "float32":
            return
        for name, tensor in tensors_of(model):
            if tensor.dtype is torch.float32:
                tensor.data = tensor.data.to(self._stored.get(name, self._model_type))


def tensors_of(model: Any) -> list[tuple[str, Any]]:
    """Return parameters and buffers, each once, by name."""
    return [*model.named_parameters(), *model.named_buffers()]

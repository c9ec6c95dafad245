"""A model computed with in 32 bits, and stored in the types that it came in.

On a CPU without native bf16 torch emulates it: a linear layer takes five times as long as in
float32, a batched matmul of attention fifty times.
"""

from __future__ import annotations

from typing import Any


class ComputeDtype:
    """What a model's floating-point tensors are turned into while it is calibrated.

    Args:
        name: "float32", or None to leave the model as it is.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._stored: dict[str, Any] = {}
        self._model_type: Any = None

    def widen(self, model: Any) -> None:
        """Turn the model's 16-bit tensors into 32 bits; the values are the same."""
        import torch

        if self.name != "float32":
            return
        self._model_type = model.dtype
        for name, tensor in tensors_of(model):
            self._stored[name] = tensor.dtype
            if tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.to(torch.float32)

    def narrow(self, model: Any) -> None:
        """Turn back what was widened, before anything is packed; new tensors as the model's own.

        Weights and scales are rounded first and quantized after, as where all is done in 16 bits.
        """
        import torch

        if self.name != "float32":
            return
        for name, tensor in tensors_of(model):
            if tensor.dtype is torch.float32:
                tensor.data = tensor.data.to(self._stored.get(name, self._model_type))


def tensors_of(model: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers, each once, by name."""
    return [*model.named_parameters(), *model.named_buffers()]

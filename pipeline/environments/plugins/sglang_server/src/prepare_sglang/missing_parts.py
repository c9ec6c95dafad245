"""Stand-ins for what SGLang imports and does not call where it serves text on a CPU.

- torchvision's build for CUDA declares operators for its own library, which a torch for CPUs cannot
  load; torchvision does not import without them.
- SGLang's rotary embedding imports vLLM's kernel before it chooses its own code for CPUs.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

_OPERATORS = ("nms", "qnms")


def declare() -> Any:
    """Declare both; return the library of operators, which has to stay referenced."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    package, kernels = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    package.__path__ = []
    kernels.rotary_embedding = _refuse  # type: ignore[attr-defined]
    for module in (package, kernels):
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    return library


def _refuse(*_: Any, **__: Any) -> None:
    raise NotImplementedError("this environment has no kernels of vLLM")

"""Lets torchvision's common build, whose compiled part is for CUDA, load with torch for CPUs.

Every Python process of the environment imports this file at its start, and nothing else with it.
torchvision describes operators of its compiled part when it is imported, and fails if they do not
exist. vLLM's models of images need its plain transforms only, so the operators are declared first.
The build for CPUs has them.
"""

import sys
from typing import Any

DECLARED: list[Any] = []  # torch forgets a declaration with its object


class Declaration:
    """Finds no module: it is asked before torchvision describes its operators."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision._meta_registrations" and not DECLARED:
            import torch

            for operator in ("nms", "qnms"):
                if not hasattr(torch.ops.torchvision, operator):
                    DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
                    DECLARED[-1].define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )


sys.meta_path.insert(0, Declaration)

"""Has vLLM run as on a CPU with fewer features: what a user without AVX-512 gets, seen here.

``PREPARE_CPU_FEATURES=avx2`` (names as in pipeline/core/cpu_features.py) makes torch deny the
others, by which vLLM chooses between its libraries of kernels, `_C`, `_C_AVX512` and `_C_AVX2`, and
what its attention offers. What torch itself computes with is limited by ATEN_CPU_CAPABILITY and
others.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

LIBRARY: list[Any] = []  # torch forgets a declaration with its object
QUESTIONS = {
    "avx2": ("_is_avx2_supported",),
    "avx512f": ("_is_avx512_supported", "_is_vnni_supported"),
    "avx512_bf16": ("_is_avx512_bf16_supported",),
    "amx": ("_is_amx_tile_supported", "_is_amx_fp16_supported"),
}


def prepare_process() -> None:
    """Do both before vLLM imports its models; None: the platform is not replaced."""
    hide_features()
    let_torchvision_load()


def let_torchvision_load() -> None:
    """Declare the operators of torchvision's compiled part, whose common build is for CUDA.

    torchvision describes them when it is imported, and fails if they do not exist. vLLM's models
    of images need its plain transforms only. The build for CPUs (`+cpu`) declares them itself.
    """
    try:
        if version("torchvision").endswith("+cpu"):
            return
    except PackageNotFoundError:
        return
    import torch

    for name in ("nms", "qnms"):
        LIBRARY.append(torch.library.Library("torchvision", "FRAGMENT"))
        LIBRARY[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def hide_features() -> None:
    """Deny what the variable does not name."""
    named = os.environ.get("PREPARE_CPU_FEATURES")
    if named is None:
        return
    import torch

    for feature in QUESTIONS.keys() - set(named.split(",")):
        for question in QUESTIONS[feature]:
            setattr(torch.cpu, question, lambda: False)

"""Has vLLM run as on a CPU with fewer features: what a user without AVX-512 gets, seen here.

``PREPARE_CPU_FEATURES=avx2`` (names as in pipeline/core/hardware.py) makes torch deny the
others, by which vLLM chooses between its libraries of kernels, `_C`, `_C_AVX512` and `_C_AVX2`, and
what its attention offers. What torch itself computes with is limited by ATEN_CPU_CAPABILITY and
others.
"""

import os

QUESTIONS = {
    "avx2": ("_is_avx2_supported",),
    "avx512f": ("_is_avx512_supported", "_is_vnni_supported"),
    "avx512_bf16": ("_is_avx512_bf16_supported",),
    "amx": ("_is_amx_tile_supported", "_is_amx_fp16_supported"),
}


def hide_features() -> None:
    """Deny what the variable does not name; None: the platform is not replaced."""
    named = os.environ.get("PREPARE_CPU_FEATURES")
    if named is None:
        return
    import torch

    for feature in QUESTIONS.keys() - set(named.split(",")):
        for question in QUESTIONS[feature]:
            setattr(torch.cpu, question, lambda: False)

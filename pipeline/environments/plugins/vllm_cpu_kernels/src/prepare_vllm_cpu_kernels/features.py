"""Has vLLM run as on a CPU with fewer features: what a user without AVX-512 gets, seen here.

``PREPARE_CPU_FEATURES=avx2`` (or `none`, as in prepare/hardware.py) makes torch deny the
others, by which vLLM chooses between its libraries of kernels, `_C`, `_C_AVX512` and `_C_AVX2`, and
what its attention offers. What torch itself computes with is limited by ATEN_CPU_CAPABILITY and
others.
"""

import os

BEYOND_AVX2 = (
    *("_is_avx512_supported", "_is_vnni_supported", "_is_avx512_bf16_supported"),
    *("_is_amx_tile_supported", "_is_amx_fp16_supported"),
)


def hide_features() -> None:
    """Deny what the variable does not name; None: the platform is not replaced."""
    named = os.environ.get("PREPARE_CPU_FEATURES")
    if not named:
        return
    import torch

    for question in (*BEYOND_AVX2, *(("_is_avx2_supported",) if named == "none" else ())):
        setattr(torch.cpu, question, lambda: False)

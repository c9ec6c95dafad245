"""Quantized checkpoints that vLLM 0.32 (CPUs, with this project's plugin) and 0.33 (GPUs) refuse.

vLLM would refuse them only after its start, or misread them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Methods of transformers that vLLM does not have.
UNKNOWN = (
    *("aqlm", "bitnet", "bitsandbytes", "eetq", "fouroversix", "gguf", "higgs", "hqq", "metal"),
    *("nvfp4", "quanto", "sinq", "spqr", "vptq"),
)
GPTQ_BITS = (4, 8)
# ModelOpt has these; a CPU has no kernel for the last two.
ALGORITHMS = (
    *("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4"),
    *("MXFP8", "MIXED_PRECISION"),
)
ON_CPU = ALGORITHMS[:-2]


def find_obstacle(config: Mapping[str, Any], accelerator: str) -> str:
    """Return why vLLM cannot load weights with this `quantization_config`, or ''.

    `quant_method` is in lower case; of ModelOpt, it includes hf_quant_config.json's `quantization`.
    """
    method = config.get("quant_method")
    if method in UNKNOWN:
        return f"vLLM has no loader for the method '{method}'"
    if method == "awq":
        is_gemm = str(config.get("version", "gemm")).lower() == "gemm"
        if not is_gemm or config.get("bits", 4) != 4 or not config.get("zero_point", True):
            return "vLLM reads AutoAWQ's 4-bit layout 'gemm' with zero points alone"
    if method == "gptq":
        if config.get("bits") not in GPTQ_BITS or config.get("sym") is False:
            return "vLLM reads GPTQ's symmetric weights of 4 or 8 bits alone"
        if config.get("desc_act") and config.get("group_size") != -1:
            return "vLLM reads no GPTQ weights whose groups are in the order of activations"
    if isinstance(method, str) and method.startswith("modelopt"):
        algorithm = str(config.get("quant_algo", "")).upper()
        known = ON_CPU if accelerator == "cpu" else ALGORITHMS
        if algorithm not in known:
            return f"vLLM serves ModelOpt's {', '.join(known)} here, not '{algorithm}'"
    return ""

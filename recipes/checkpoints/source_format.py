"""Number format of a released quantized checkpoint.

compressed-tensors' converters make the 16-bit weights for recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

QUANTIZATION_KEYS = ("quantization_config", "compression_config")
QUANTIZER_FILE = "hf_quant_config.json"  # of NVIDIA's ModelOpt

Converter = Literal["compressed-tensors", "fp8-block", "awq"]
# Columns of a group of 4-bit floats.
FOUR_BIT_FLOATS = {16: "NVFP4", 32: "MXFP4"}
MXFP4_REASON = "its experts are fused, and recipes leave those in 16 bits, which is larger"


@dataclass(frozen=True)
class SourceFormat:
    """Format of released weights."""

    label: str  # FP8, INT4, MXFP4, ...
    converter: Converter | None = None  # to 16 bits, if there is one
    reason: str = "nothing here converts such weights to 16 bits"  # of None


def source_format(
    config: Mapping[str, Any], quantizer: Mapping[str, Any] | None = None
) -> SourceFormat | None:
    """Return the format; None for unquantized weights.

    `quantizer` is hf_quant_config.json.
    """
    quantization = next(quantization_configs(config), None)
    if quantization is None:
        if quantizer is None:
            return None
        described = quantizer.get("quantization")
        quantization = {
            **(described if isinstance(described, dict) else {}),
            "quant_method": "modelopt",
        }
    method = str(quantization.get("quant_method"))
    if method == "compressed-tensors":
        labels = dict.fromkeys(map(_label, quantized_groups(quantization)))
        return SourceFormat(" and ".join(labels) or "quantized", "compressed-tensors")
    if method == "fp8":
        in_blocks = isinstance(quantization.get("weight_block_size"), list)
        return SourceFormat("FP8", "fp8-block" if in_blocks else None)
    if method == "awq":
        is_gemm = (
            str(quantization.get("version", "gemm")).lower() == "gemm"
            and quantization.get("bits", 4) == 4
        )
        return SourceFormat("INT4", "awq" if is_gemm else None)
    if method == "gptq":
        bits = quantization.get("bits")
        return SourceFormat(f"INT{bits}" if bits in (2, 3, 4, 8) else "GPTQ")
    if method.startswith("modelopt"):
        algorithm = str(quantization.get("quant_algo")).upper()
        return SourceFormat(algorithm if algorithm in ("FP8", "NVFP4") else "ModelOpt")
    if method == "mxfp4":
        return SourceFormat("MXFP4", reason=MXFP4_REASON)
    return SourceFormat("quantized")


def quantization_configs(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield config.json's descriptions of quantized weights."""
    for level in (config, config.get("text_config")):
        for key in QUANTIZATION_KEYS:
            if isinstance(level, dict) and level.get(key):
                yield level[key] if isinstance(level[key], dict) else {}


def quantized_groups(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each group's settings of weights."""
    groups = config.get("config_groups")
    return [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]


def _label(weights: dict[str, Any]) -> str:
    bits = weights.get("num_bits")
    group = weights.get("group_size")
    if type(bits) is not int or not 1 <= bits <= 16:
        return "quantized"
    if weights.get("type") != "float":
        return f"INT{bits}"
    four = FOUR_BIT_FLOATS.get(group) if bits == 4 and isinstance(group, int) else None
    return four or f"FP{bits}"

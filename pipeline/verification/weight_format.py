"""Weight format of a variant, and whether it is one of the recipe's.

It comes from `quantization_config`, by which an engine selects kernels: compressed-tensors'
`config_groups`, or AutoAWQ's keys.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.core.errors import VerificationError
from recipes.quantization import Quantization
from recipes.weight_format import AWQ_GEMM, WeightFormat


def stored_format(config: Any, where: str) -> WeightFormat:
    """Return the format in a `quantization_config`."""
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method == "awq":
        return _awq_format(config, where)
    if method != "compressed-tensors":
        raise VerificationError("config.json does not mark the weights as quantized", where=where)
    formats = {_group_format(group, where) for group in config.get("config_groups", {}).values()}
    if len(formats) != 1:
        raise VerificationError(
            f"config.json has {len(formats)} weight formats; verification supports one",
            where=f"{where}.config_groups",
            hint="use a recipe that quantizes all layers alike",
        )
    return formats.pop()


def _awq_format(config: dict[str, Any], where: str) -> WeightFormat:
    if str(config.get("version", "")).lower() != "gemm" or config.get("bits") != 4:
        raise VerificationError(
            "AutoAWQ's only supported format is the 4-bit 'gemm'",
            where=f"{where}.version",
        )
    return WeightFormat(
        AWQ_GEMM,
        4,
        "int",
        "group",
        group=config.get("group_size"),
        symmetric=not config.get("zero_point", True),
    )


def _group_format(group: dict[str, Any], where: str) -> WeightFormat:
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    try:
        strategy = str(weights["strategy"])
        return WeightFormat(
            name=str(group.get("format")),
            bits=weights["num_bits"],
            number=weights["type"],
            strategy=strategy,
            group=weights["group_size"] if "group" in strategy else None,
            block=_pair(weights["block_structure"]) if strategy == "block" else None,
            symmetric=weights["symmetric"],
            reordered=weights.get("actorder") == "group",
            static_input=bool(inputs) and inputs.get("dynamic") in (False, "local"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError(
            f"config.json does not describe the weights' format ({error})",
            where=f"{where}.config_groups",
        ) from error


def _pair(block: Any) -> tuple[int, int]:
    height, width = block
    return int(height), int(width)


def check_format(variant: Path, config: dict[str, Any], recipe: Quantization) -> WeightFormat:
    """Return the variant's format; raise VerificationError if it is not the recipe's."""
    where = f"{variant / 'config.json'}, key quantization_config"
    found = stored_format(config.get("quantization_config"), where)
    wanted = recipe.weight_formats
    # The quantizer may reorder columns for any recipe with groups.
    if replace(found, reordered=False) not in wanted:
        raise VerificationError(
            f"config.json has the weight format '{found}', "
            f"and the recipe requires '{' or '.join(map(str, wanted))}'",
            where=where,
            hint="quantize again; if it happens again, the quantizer's version differs",
        )
    return found


def has_kv_cache_scales(config: dict[str, Any]) -> bool:
    """Return whether the variant has calibrated scales of an FP8 KV cache."""
    return bool((config.get("quantization_config") or {}).get("kv_cache_scheme"))


def block_name(name: str) -> str:
    """Return the numbered layer of a tensor: 'model.layers.3'; empty outside of layers."""
    found = re.match(r"(.*?\.(?:layers|h|blocks|block)\.\d+)\.", name)
    return found[1] if found else ""

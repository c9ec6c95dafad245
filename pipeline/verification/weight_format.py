"""Weight format of a variant, and whether it is one of the recipe's.

It comes from `quantization_config`, by which an engine selects kernels: compressed-tensors'
`config_groups`, or AutoAWQ's keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import VerificationError
from recipes.group_sizes import sizes_to_try
from recipes.quantization import (
    AutoAwqQuantization,
    AwqQuantization,
    GptqQuantization,
    PresetQuantization,
    Quantization,
)

BLOCK = (128, 128)
NVFP4_GROUP = 16
AWQ_GEMM = "awq-gemm"  # name of AutoAWQ's layout here; others are compressed-tensors'


@dataclass(frozen=True)
class WeightFormat:
    """Storage format of a layer's weights."""

    name: str  # compressed-tensors' format, or `awq-gemm`
    bits: int  # of a weight
    number: str  # int or float
    # Unit of a scale: tensor, channel (a row), block, group, tensor_group (groups, and one more
    # scale for the matrix).
    strategy: str
    group: int | None = None  # columns of a group, if any
    block: tuple[int, int] | None = None  # rows and columns of a block, if any
    symmetric: bool = True  # without zero points
    reordered: bool = False  # each column has a group index (`weight_g_idx`)
    static_input: bool = False  # activations also have a stored scale

    def __str__(self) -> str:
        shared = {"group": f"groups of {self.group}", "block": f"blocks of {self.block}"}
        words = [self.name, f"{self.bits}-bit {self.number}"]
        words.append(shared.get(self.strategy, f"a scale a {self.strategy}"))
        words.append("symmetric" if self.symmetric else "zero points")
        return ", ".join(words + ["static activations"] * self.static_input)


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


def expected_formats(recipe: Quantization) -> tuple[WeightFormat, ...]:
    """Return the possible formats of a recipe, one for each group size.

    Raises:
        VerificationError: for the baseline's recipe.
    """
    if isinstance(recipe, PresetQuantization):
        return (PRESET_FORMATS[recipe.scheme],)
    if isinstance(recipe, GptqQuantization) and recipe.scheme == "W8A8":
        return (WeightFormat("int-quantized", 8, "int", "channel"),)
    if isinstance(recipe, AwqQuantization | GptqQuantization):
        bits, symmetric = (
            (recipe.bits, recipe.symmetric) if isinstance(recipe, AwqQuantization) else (4, True)
        )
        return tuple(
            WeightFormat("pack-quantized", bits, "int", "group", group=size, symmetric=symmetric)
            for size in sizes_to_try(recipe.model_dump())
        )
    if isinstance(recipe, AutoAwqQuantization):
        return tuple(
            WeightFormat(AWQ_GEMM, 4, "int", "group", group=size, symmetric=False)
            for size in sizes_to_try(recipe.model_dump())
        )
    raise VerificationError("a recipe without quantization cannot be verified")


PRESET_FORMATS = {
    "FP8_DYNAMIC": WeightFormat("float-quantized", 8, "float", "channel"),
    "FP8_BLOCK": WeightFormat("float-quantized", 8, "float", "block", block=BLOCK),
    "FP8": WeightFormat("float-quantized", 8, "float", "tensor", static_input=True),
    "NVFP4": WeightFormat(
        "nvfp4-pack-quantized",
        4,
        "float",
        "tensor_group",
        group=NVFP4_GROUP,
        static_input=True,
    ),
}


def check_format(variant: Path, config: dict[str, Any], recipe: Quantization) -> WeightFormat:
    """Return the variant's format; raise VerificationError if it is not the recipe's."""
    where = f"{variant / 'config.json'}, key quantization_config"
    found = stored_format(config.get("quantization_config"), where)
    wanted = expected_formats(recipe)
    # The quantizer may reorder columns for any recipe with groups.
    plain = WeightFormat(**{**vars(found), "reordered": False})
    if plain not in wanted:
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

"""Headers that a quantized checkpoint has once it is converted to 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.checkpoint.source_format import QUANTIZATION_KEYS, quantization_configs
from pipeline.core.errors import CheckpointError
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.variant_size import VariantWeights, variant_weights
from recipes.quantization import Quantization

NARROW = ("F8_E4M3", "F8_E5M2", "I8", "F4")
# Tensors that the formats with a converter store for a layer, besides its weight.
BESIDES = (
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "weight_scale_2",
    "scales",
    "qzeros",
    "g_idx",
    "k_scale",
    "v_scale",
    "q_scale",
)
PACKED, PACKED_IN = "weight_packed", "qweight"
WORD_BITS = 32


def dequantized(source: HeaderSource) -> HeaderSource:
    """Return the 16-bit checkpoint's config and tensors; the source itself if it has 16 bits.

    Raises:
        CheckpointError: packed weights have no rows and columns.
    """
    if source.format is None:
        return source
    tensors = dict(
        found
        for name, tensor in source.tensors.items()
        if (found := _tensor(name, tensor, source)) is not None
    )
    size = sum(tensor.size for tensor in tensors.values())
    config = {key: value for key, value in source.config.items() if key not in QUANTIZATION_KEYS}
    return replace(
        source,
        config=config,
        tensors=tensors,
        weights_bytes=size,
        largest_file_bytes=min(
            size, source.largest_file_bytes * -(-size // max(1, source.weights_bytes))
        ),
        names=source.names - {"hf_quant_config.json"},
    )


def planned_weights(source: HeaderSource, quantization: Quantization) -> VariantWeights:
    """Return the weights of a variant, or of the baseline, which is served as it is."""
    start = dequantized(source) if quantization.quantizes else source
    return variant_weights(start.tensors, quantization, start.config)


def _tensor(name: str, tensor: TensorEntry, source: HeaderSource) -> tuple[str, TensorEntry] | None:
    bits = _packed_bits(source.config)
    module, _, leaf = name.rpartition(".")
    if leaf in BESIDES:
        return None
    if leaf in (PACKED, PACKED_IN) and len(tensor.shape) < 2:
        raise CheckpointError(
            f"'{name}' has the shape {tensor.shape}, and packed weights are a matrix",
            where=source.where,
            hint="download the weights again",
        )
    if leaf == PACKED:
        in_element = (8 if tensor.dtype == "U8" else WORD_BITS) // bits
        return f"{module}.weight", _sixteen_bits((tensor.shape[0], tensor.shape[1] * in_element))
    if leaf == PACKED_IN:
        first, second = tensor.shape[:2]
        by_inputs = f"{module}.g_idx" in source.tensors  # GPTQ's; AutoAWQ packs outputs
        shape = (
            (second, first * WORD_BITS // bits) if by_inputs else (second * WORD_BITS // 4, first)
        )
        return f"{module}.weight", _sixteen_bits(shape)
    if leaf == "weight" and f"{module}.weight_scale_2" in source.tensors and tensor.shape:
        return name, _sixteen_bits((*tensor.shape[:-1], 2 * tensor.shape[-1]))
    return name, _sixteen_bits(tensor.shape) if tensor.dtype in NARROW else tensor


def _packed_bits(config: Mapping[str, Any]) -> int:
    """Return the bits of packed numbers: 8 if every group of layers has them, else 4."""
    found = next(quantization_configs(config), {})
    if found.get("bits") == 8:
        return 8
    groups = found.get("config_groups")
    weights = [
        group.get("weights")
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict)
    ]
    eight = [isinstance(each, dict) and each.get("num_bits") == 8 for each in weights]
    return 8 if eight and all(eight) else 4


def _sixteen_bits(shape: tuple[int, ...]) -> TensorEntry:
    entry = TensorEntry("BF16", shape, 0, 0)
    return replace(entry, end=2 * entry.elements)

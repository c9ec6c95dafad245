"""Headers of a quantized checkpoint after its conversion."""

from __future__ import annotations

import math
from dataclasses import replace

from prepare.errors import CheckpointError
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.source_format import (
    QUANTIZATION_KEYS,
    quantization_configs,
    quantized_groups,
)
from recipes.checkpoints.variant_size import VariantWeights, variant_weights
from recipes.quantization import Quantization

NARROW = ("F8_E4M3", "F8_E5M2", "I8", "F4")
# Tensors that quantized formats store for a layer, besides its weight.
BESIDES = (
    *("weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "weight_g_idx"),
    *("weight_global_scale", "input_scale", "input_zero_point", "input_global_scale"),
    *("weight_scale_2", "scales", "qzeros", "g_idx", "k_scale", "v_scale", "q_scale"),
)
PACKED = "weight_packed"
PACKED_IN = "qweight"
WORD_BITS = 32


def dequantized(source: Checkpoint) -> Checkpoint:
    """Return config and tensors in 16 bits.

    CheckpointError: packed weights have no rows and columns.
    """
    if source.format is None:
        return source
    quantization = next(quantization_configs(source.config), {})
    groups = quantized_groups(quantization)
    # A mix of 4 and 8 bits counts as 4: its weights are larger than that at most.
    eight = bool(groups) and all(group.get("num_bits") == 8 for group in groups)
    bits = 8 if eight or quantization.get("bits") == 8 else 4
    tensors = dict(
        _sixteen_bits(name, tensor, source, bits)
        for name, tensor in source.tensors.items()
        if name.rpartition(".")[2] not in BESIDES
    )
    size = sum(tensor.size for tensor in tensors.values())
    growth = -(-size // max(1, source.weights_bytes))
    return replace(
        source,
        config={key: value for key, value in source.config.items() if key not in QUANTIZATION_KEYS},
        tensors=tensors,
        weights_bytes=size,
        largest_file_bytes=min(size, source.largest_file_bytes * growth),
        quantizer=None,
    )


def planned_weights(source: Checkpoint, quantization: Quantization) -> VariantWeights:
    """Return the planned weights of a variant or the baseline."""
    start = dequantized(source) if quantization.quantizes else source
    return variant_weights(start.tensors, quantization, start.config)


def _sixteen_bits(
    name: str, tensor: TensorEntry, source: Checkpoint, bits: int
) -> tuple[str, TensorEntry]:
    module, _, leaf = name.rpartition(".")
    shape = tensor.shape
    if leaf in (PACKED, PACKED_IN):
        if len(shape) < 2:
            raise CheckpointError(
                f"'{name}' has the shape {shape}, and packed weights are a matrix",
                where=source.where,
                hint="download the weights again",
            )
        if leaf == PACKED:
            shape = (shape[0], shape[1] * (8 if tensor.dtype == "U8" else WORD_BITS) // bits)
        elif f"{module}.g_idx" in source.tensors:  # GPTQ packs inputs, AutoAWQ outputs
            shape = (shape[1], shape[0] * WORD_BITS // bits)
        else:
            shape = (shape[1] * WORD_BITS // 4, shape[0])
        name = f"{module}.weight"
    elif leaf == "weight" and f"{module}.weight_scale_2" in source.tensors and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    elif tensor.dtype not in NARROW:
        return name, tensor
    return name, TensorEntry("BF16", shape, 0, 2 * math.prod(shape))

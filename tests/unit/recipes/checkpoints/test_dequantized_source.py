"""Headers of the 16-bit checkpoint, as the quantized one's headers imply them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prepare.errors import CheckpointError
from recipes import catalog
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.dequantized_source import dequantized, planned_weights
from recipes.checkpoints.safetensors_header import TensorEntry

BYTES = {"I32": 4, "I64": 8, "BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
LAYER = "model.layers.0.mlp.up_proj"
Layout = dict[str, tuple[str, tuple[int, ...]]]


def source(layout: Layout, quantization: dict[str, Any]) -> Checkpoint:
    tensors = {
        name: TensorEntry(dtype, shape, 0, BYTES[dtype] * math.prod(shape))
        for name, (dtype, shape) in layout.items()
    }
    size = sum(tensor.size for tensor in tensors.values())
    config = {"num_hidden_layers": 1, "quantization_config": quantization}
    return Checkpoint("it", "it/config.json", config, tensors, size, size)


def group(bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "group_size": 64}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}


PACKED: Layout = {
    f"{LAYER}.weight_packed": ("I32", (256, 16)),
    f"{LAYER}.weight_scale": ("BF16", (256, 2)),
    f"{LAYER}.weight_shape": ("I64", (2,)),
}
FORMATS: list[tuple[Layout, dict[str, Any], tuple[int, ...]]] = [
    (PACKED, group(4), (256, 128)),
    (PACKED, group(8), (256, 64)),
    (
        {f"{LAYER}.weight": ("F8_E4M3", (256, 128)), f"{LAYER}.weight_scale_inv": ("F32", (2, 1))},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        (256, 128),
    ),
    (
        {
            f"{LAYER}.weight_packed": ("U8", (256, 64)),
            f"{LAYER}.weight_scale": ("F8_E4M3", (256, 8)),
            f"{LAYER}.weight_global_scale": ("F32", (1,)),
            f"{LAYER}.input_global_scale": ("F32", (1,)),
        },
        group(4),
        (256, 128),
    ),
    (
        {
            f"{LAYER}.qweight": ("I32", (32, 256)),
            f"{LAYER}.qzeros": ("I32", (2, 64)),
            f"{LAYER}.scales": ("BF16", (2, 256)),
            f"{LAYER}.g_idx": ("I32", (128,)),
        },
        {"quant_method": "gptq", "bits": 8},
        (256, 128),
    ),
    (
        {
            f"{LAYER}.weight": ("U8", (256, 64)),
            f"{LAYER}.weight_scale": ("F8_E4M3", (256, 8)),
            f"{LAYER}.weight_scale_2": ("F32", ()),
            f"{LAYER}.input_scale": ("F32", ()),
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        (256, 128),
    ),
    (
        {
            f"{LAYER}.qweight": ("I32", (128, 32)),
            f"{LAYER}.qzeros": ("I32", (1, 32)),
            f"{LAYER}.scales": ("BF16", (1, 256)),
        },
        {"quant_method": "awq", "bits": 4, "version": "gemm"},
        (256, 128),
    ),
]


@pytest.mark.parametrize(("layout", "quantization", "shape"), FORMATS)
def test_matrices(layout: Layout, quantization: dict[str, Any], shape: tuple[int, ...]) -> None:
    norm: Layout = {"model.norm.weight": ("F32", (128,))}
    found = dequantized(source(layout | norm, quantization))
    matrix = found.tensors[f"{LAYER}.weight"]
    assert (matrix.dtype, matrix.shape, matrix.size) == ("BF16", shape, 2 * math.prod(shape))
    assert found.tensors["model.norm.weight"].dtype == "F32"
    assert len(found.tensors) == 2
    assert found.weights_bytes == matrix.size + 4 * 128
    assert found.format is None


def test_baselines_count_as_they_are_and_variants_start_in_16_bits() -> None:
    released = source(PACKED, group(4))
    baseline = planned_weights(released, catalog.load_recipe("baseline").quantization)
    assert baseline.bytes == released.weights_bytes
    fp8 = planned_weights(released, catalog.load_recipe("fp8-dynamic").quantization)
    assert fp8.bytes == 256 * 128 + 2 * 256


@pytest.mark.parametrize("leaf", ["weight_packed", "qweight"])
@pytest.mark.parametrize("shape", [(), (8,)])
def test_packed_weights_without_rows(leaf: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match=f"{leaf}' has the shape"):
        dequantized(source({f"{LAYER}.{leaf}": ("I32", shape)}, group(4)))

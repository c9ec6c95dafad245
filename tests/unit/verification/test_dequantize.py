"""Weights as numbers again: no farther from what was quantized than half a step of the format."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from foreign_variants import CONFIGS, foreign_layer
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow_numbers import Stored, from_bf16, words
from one_layer import stored_layer
from small_checkpoint import write_files
from sound_variants import (
    GROUP,
    RECIPES,
    WEIGHTS,
    Tensors,
    quantization_config,
    quantized,
    safetensors_of,
)

from pipeline.core.errors import VerificationError
from pipeline.verification.dequantize import LayerDequantizer, layer_weights
from pipeline.verification.tensor_files import open_folder
from pipeline.verification.weight_format import stored_formats
from recipes.weight_format import PLAIN, WeightFormat


def largest_step(weights: Any, kind: str) -> Any:
    """An upper bound of the distance to the nearest number, for each weight."""
    size = np.abs(weights)
    if kind.startswith("fp8"):
        # Four bits of mantissa, the smallest denormal, and the scale's own rounding to bf16.
        largest = size.max() if kind != "fp8-dynamic" else size.max(axis=1, keepdims=True)
        return size * 2.0**-4 + largest / 448 * 2.0**-9
    if kind == "int8":
        return np.broadcast_to(size.max(axis=1, keepdims=True) / 127, weights.shape)
    grouped = size.reshape(len(weights), -1, GROUP)
    most = grouped.max(axis=2, keepdims=True)
    steps = {"awq-8": 4 / 255}.get(kind, 2 / 15)
    return np.broadcast_to(most * steps * 1.1, grouped.shape).reshape(weights.shape)


@pytest.mark.parametrize("kind", sorted({*RECIPES} - {"mixed"}))
@settings(max_examples=12)
@given(
    rows=st.integers(1, 9).map(lambda n: 32 * n),
    groups=st.integers(1, 5),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    seed=st.integers(0, 99),
)
def test_round_trip(kind: str, rows: int, groups: int, spread: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.normal(size=(rows, groups * GROUP)).astype(np.float32)
    factors = np.exp(random.normal(size=(rows, 1)) * spread)
    weights *= np.minimum(factors, 1e4).astype(np.float32)  # AutoAWQ stores its scales as FP16
    with TemporaryDirectory() as folder:
        _, layer = stored_layer(Path(folder), weights, kind)
        found = layer.rows(0, rows)
        pieces = [layer.rows(begin, min(begin + 128, rows)) for begin in range(0, rows, 128)]
    assert found.dtype == np.float32
    assert np.array_equal(np.concatenate(pieces), found)
    if kind == "nvfp4":
        # Scales of rows much weaker than the strongest are rounded by fp8 to little or nothing.
        strong = np.abs(weights).max(1) > 0.1 * np.abs(weights).max()
        found, weights = found[strong], (weights[strong])
        most = np.abs(weights).reshape(len(weights), -1, 16).max(axis=2)
        assert (np.abs(found - weights) <= np.repeat(most, 16, 1) * 0.25).all()
        return
    if kind == "mxfp4":
        # Half of the widest step, 2 of 6; more where the scale is rounded down.
        most = np.abs(weights).reshape(rows, -1, 32).max(axis=2)
        assert (np.abs(found - weights) <= np.repeat(most, 32, 1) * 0.26).all()
        return
    assert (np.abs(found - weights) <= largest_step(weights, kind) * 1.01).all()


def layer_of(folder: Path, tensors: Tensors, config: dict[str, Any]) -> LayerDequantizer:
    write_files(folder, {WEIGHTS: safetensors_of(tensors)})
    found = open_folder(folder).tensors
    return layer_weights(stored_formats(config, "").coarsest, "x", (32, 2 * GROUP), found)


def test_columns_that_name_their_group(tmp_path: Path) -> None:
    """As GPTQ may order columns by activation."""
    random = np.random.default_rng(3)
    weights = random.normal(size=(32, 2 * GROUP)) * ([1] * GROUP + [9] * GROUP)
    order = random.permutation(2 * GROUP)
    tensors = quantized("x", weights, "gptq", "BF16")
    in_order = layer_of(tmp_path / "plain", tensors, quantization_config("gptq")).rows(0, 32)

    steps = np.repeat(from_bf16(tensors["x.weight_scale"]), GROUP, 1)
    codes = np.round(in_order / steps) + 8
    tensors["x.weight_packed"] = Stored("I32", words(codes[:, order], 4))
    tensors["x.weight_g_idx"] = Stored("I32", (order // GROUP).astype(np.int32))
    config = quantization_config("gptq")
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    reordered = layer_of(tmp_path / "reordered", tensors, config)
    assert np.array_equal(reordered.rows(0, 32), in_order[:, order])

    tensors["x.weight_g_idx"] = Stored("I32", np.full(2 * GROUP, 2, np.int32))
    with pytest.raises(VerificationError, match=r" 2\b"):
        layer_of(tmp_path / "damaged", tensors, config)


MINIMUM_DB = {"gptq": 17, "gptq_v2": 42, "fp8": 30, "bnb-8": 40, "gguf": 40}


@pytest.mark.parametrize("kind", list(CONFIGS))
@settings(max_examples=8)
@given(rows=st.integers(1, 9).map(lambda n: 32 * n), groups=st.integers(1, 5))
def test_layouts_of_other_programs(kind: str, rows: int, groups: int) -> None:
    weights = np.random.default_rng(rows).normal(size=(rows, groups * GROUP)).astype(np.float32)
    config = CONFIGS[kind]
    form = (
        stored_formats(config, "").coarsest if config else WeightFormat(PLAIN, 16, "float", "none")
    )
    with TemporaryDirectory() as folder:
        layer = foreign_layer("x", weights, kind)
        write_files(Path(folder), {WEIGHTS: safetensors_of(layer)})
        reader = layer_weights(form, "x", weights.shape, open_folder(Path(folder)).tensors)
        found = reader.rows(0, rows)
        pieces = [reader.rows(begin, min(begin + 128, rows)) for begin in range(0, rows, 128)]
    assert found.shape == weights.shape
    assert np.array_equal(np.concatenate(pieces), found)
    noise = float(((found - weights) ** 2).sum() / (weights**2).sum())
    assert -10 * np.log10(noise) > MINIMUM_DB.get(kind, 30 if "fp8" in kind else 18)

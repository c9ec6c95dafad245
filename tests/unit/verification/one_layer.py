"""A single layer in two files, as verification reads it; for tests of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from narrow_numbers import Stored
from small_checkpoint import write_files
from sound_variants import WEIGHTS, quantization_config, quantized, safetensors_of

from pipeline.verification.dequantize import LayerDequantizer, layer_weights
from pipeline.verification.tensor_files import StoredTensor, open_folder
from pipeline.verification.weight_format import stored_formats

NAME = "model.layers.0.mlp.down_proj"


def stored_layer(
    folder: Path, weights: Any, kind: str, source: Any = None
) -> tuple[StoredTensor, LayerDequantizer]:
    """`weights` quantized, with `source` (the same weights where None) in float32."""
    matrix = np.asarray(weights if source is None else source, np.float32)
    before = {f"{NAME}.weight": Stored("F32", matrix)}
    write_files(folder / "source", {WEIGHTS: safetensors_of(before)})
    after = quantized(NAME, np.asarray(weights, np.float32), kind, "BF16")
    write_files(folder / "variant", {WEIGHTS: safetensors_of(after)})
    form = stored_formats(quantization_config(kind), "config.json").of(NAME)
    assert form is not None
    tensors = open_folder(folder / "variant").tensors
    layer = layer_weights(form, NAME, matrix.shape, tensors)
    return open_folder(folder / "source").tensors[f"{NAME}.weight"], layer

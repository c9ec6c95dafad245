"""Weights in AWQ's GEMM format, read by numpy alone, are bit by bit AutoAWQ's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.verification.dequantize import layer_weights
from pipeline.verification.tensor_files import open_folder
from recipes.weight_format import AWQ_GEMM, WeightFormat

ROWS, COLUMNS, GROUP = 256, 384, 128

# The one file of the library that unpacks is loaded by its path: the package itself imports much.
DEQUANTIZE = """
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from safetensors.torch import save_file

folder, rows, columns, group = Path(sys.argv[1]), *map(int, sys.argv[2:])
package = Path(find_spec("awq").submodule_search_locations[0])
spec = spec_from_file_location("packing", package / "utils" / "packing_utils.py")
packing = module_from_spec(spec)
spec.loader.exec_module(packing)
torch.manual_seed(0)


def words(*shape):
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64).to(torch.int32)


qweight, qzeros = words(columns, rows // 8), words(columns // group, rows // 8)
scales = (torch.rand(columns // group, rows) + 0.01).half()
whole = packing.dequantize_gemm(qweight, qzeros, scales, 4, group)
parts = {"x.qweight": qweight, "x.qzeros": qzeros, "x.scales": scales}
(folder / "whole").mkdir()
save_file(parts, folder / "model.safetensors")
save_file({"whole": whole.T.contiguous()}, folder / "whole" / "model.safetensors")
"""


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_bit_by_bit(tmp_path: Path) -> None:
    python = ensure("quantize-autoawq", Accelerator.CPU, load_settings(), NullProgress()).python
    words = [python, "-c", DEQUANTIZE, tmp_path, ROWS, COLUMNS, GROUP]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)
    form = WeightFormat(AWQ_GEMM, 4, "int", "group", group=GROUP, symmetric=False)
    layer = layer_weights(form, "x", (ROWS, COLUMNS), open_folder(tmp_path).tensors)
    found = np.concatenate([layer.rows(0, 128), layer.rows(128, ROWS)])
    expected = open_folder(tmp_path / "whole").tensors["whole"].read().view(np.float16)
    # It multiplies in float16; each product rounded once is the same.
    assert np.array_equal(found.astype(np.float16).reshape(-1), expected)
    assert np.abs(found).max() > 1

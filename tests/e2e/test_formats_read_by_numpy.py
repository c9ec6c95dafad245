"""What the library writes means what it reads: numpy alone reads the same, bit by bit.

Verification reads weights by the library that wrote them, so the library is checked here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow_numbers import FP4_VALUES, Stored, from_bf16, from_fp8

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.weights.accounting import StoredTensor, open_folder

SHAPE = (256, 384)
FORMATS = {
    "fp8 channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8 tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
    ),
    "int8 channel": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int4": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64},
    ),
    "int4 zero points": (
        "pack-quantized",
        {
            "num_bits": 4,
            "type": "int",
            "strategy": "group",
            "group_size": 128,
            "symmetric": False,
        },
    ),
    "int8 zero points": (
        "pack-quantized",
        {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    ),
}

# Writes what compress() makes, and what decompress() makes of that into whole/. The weights have
# rows of very different sizes, one of zeros, and tiny numbers.
COMPRESS = """
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

folder, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
TOP = {("float", 8): 448, ("float", 4): 6, ("int", 8): 127, ("int", 4): 7}


def write(name, arguments, scale_type, output):
    rows, columns = shape
    weight = torch.randn(rows, columns) * torch.exp(torch.randn(rows, 1) * 2)
    weight[3] = 0
    weight[4, :8] = 1e-30
    args = QuantizationArgs(**arguments)
    size = weight.abs().unflatten(1, (-1, args.group_size or columns)).amax(2) + 1e-3
    if args.strategy == "tensor":
        size = size.max().reshape(1)
    if args.strategy == "block":
        size = weight.abs().unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).amax((1, 3))
    state = {
        "weight": weight,
        "weight_scale": (size / TOP[args.type, args.num_bits]).to(scale_type),
    }
    if args.strategy == "tensor_group":
        divisor = 448 * 6 / weight.abs().max().reshape(1)
        state["weight_global_scale"] = divisor
        narrow = (size / 6 * divisor).clamp(2**-9).to(torch.float8_e4m3fn)
        state["weight_scale"] = narrow.to(scale_type)
    if not args.symmetric:
        low = -(2 ** (args.num_bits - 1))
        state["weight_zero_point"] = torch.randint(low, -low, size.shape, dtype=torch.int8)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(name)
    stored = compressor.compress(state, scheme)
    whole = compressor.decompress(dict(stored), scheme)["weight"]
    (output / "whole").mkdir(parents=True)
    parts = {"x." + key: value.contiguous() for key, value in stored.items()}
    save_file(parts, output / "model.safetensors")
    save_file({"whole": whole.contiguous()}, output / "whole" / "model.safetensors")


torch.manual_seed(1)
for form, (name, arguments) in json.loads(sys.argv[3]).items():
    for scale_type in ("bfloat16", "float32", "float16"):
        write(name, arguments, getattr(torch, scale_type), folder / form / scale_type)
"""


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every format with scales of every type, by compressed-tensors."""
    folder = tmp_path_factory.mktemp("compressed")
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    words = [str(folder), json.dumps(SHAPE), json.dumps(FORMATS)]
    subprocess.run(
        [str(python), "-c", COMPRESS, *words], check=True, capture_output=True, timeout=300
    )
    return folder


def numbers(tensor: StoredTensor) -> Any:
    """A tensor of a file, floating-point types as float32."""
    kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "I8": "i1", "I32": "<i4", "I64": "<i8"}
    number = np.dtype(kind.get(tensor.dtype, "u1"))
    count = tensor.size // number.itemsize
    raw = np.fromfile(tensor.path, number, count, offset=tensor.begin).reshape(tensor.shape)
    readers = {"BF16": from_bf16, "F8_E4M3": from_fp8}
    read = readers.get(tensor.dtype)
    return read(Stored(tensor.dtype, raw)) if read else raw


def integers(words: Any, bits: int) -> Any:
    """Signed numbers of each row's 32-bit words, lowest bits first."""
    shifts = np.arange(0, 32, bits)
    fields = words.view(np.uint32)[..., None] >> shifts & (2**bits - 1)
    return fields.reshape(len(words), -1).astype(np.float32) - 2 ** (bits - 1)


def read_layer(tensors: dict[str, StoredTensor], arguments: dict[str, Any]) -> Any:
    """A layer's weights as rows x columns in float32."""
    rows, columns = SHAPE
    parts = {suffix: numbers(tensor) for suffix, tensor in tensors.items()}
    bits, scale = arguments["num_bits"], parts["weight_scale"]
    if arguments["type"] == "float" and bits == 4:
        pairs = parts["weight_packed"]
        codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(rows, columns)
        values = np.where(codes < 8, FP4_VALUES[codes & 7], -FP4_VALUES[codes & 7])
        if "weight_global_scale" in parts:
            scale = scale / parts["weight_global_scale"]
        else:
            scale = 2.0 ** (scale.astype(np.float32) - 127)
    elif "weight_packed" in parts:
        values = integers(parts["weight_packed"], bits)[:, :columns]
    else:
        values = parts["weight"].astype(np.float32)
    high, wide = (-(-size // n) for size, n in zip(SHAPE, (*scale.shape, 1, 1), strict=False))
    if "weight_zero_point" in parts:
        zeros = integers(np.ascontiguousarray(parts["weight_zero_point"].T), bits).T[:rows]
        values = values - np.repeat(zeros, wide, axis=1)
    each = np.repeat(np.repeat(scale.reshape(-1, scale.size // len(scale)), high, 0), wide, 1)
    return (values * each.astype(np.float32)).astype(np.float32)


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scale_type", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("form", list(FORMATS))
def test_bit_by_bit(compressed: Path, form: str, scale_type: str) -> None:
    folder = compressed / form / scale_type
    tensors = {n.removeprefix("x."): t for n, t in open_folder(folder).tensors.items()}
    found = read_layer(tensors, FORMATS[form][1])
    whole = open_folder(folder / "whole").tensors["whole"]
    expected = numbers(whole).astype(np.float32)
    # It multiplies in the type of the scales; each product rounded once is the same.
    rounded = {"BF16": to_bf16, "F16": to_f16}.get(whole.dtype, np.asarray)(found)
    assert np.array_equal(rounded.view(np.uint32), expected.view(np.uint32))
    assert np.abs(found).max() > 1


def to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def to_f16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)

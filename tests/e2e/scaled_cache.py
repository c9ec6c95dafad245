"""The demo checkpoint with scales of its KV cache, as calibrated ones are stored."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Collection
from pathlib import Path

SCHEME = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "dynamic": False,
    "symmetric": True,
}
SCALES = {"k_scale": 0.0625, "v_scale": 0.03125}
JOINT = {"kv_scale": 0.0625}


def with_scales(model: Path, folder: Path, ignored: Collection[int] = ()) -> Path:
    """Return a copy with one scale of keys and of values in each layer.

    The `ignored` layers have one for both, by its old name: vLLM takes it for keys and 1.0 for
    values, without a word.
    """
    shutil.copytree(model, folder)
    (weights,) = folder.glob("*.safetensors")
    data = weights.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    content = data[8 + size :]
    config = json.loads((folder / "config.json").read_text())
    for layer in range(config["num_hidden_layers"]):
        for name, scale in (JOINT if layer in ignored else SCALES).items():
            begin = len(content)
            content += struct.pack("<f", scale)
            header[f"model.layers.{layer}.self_attn.{name}"] = {
                "dtype": "F32",
                "shape": [1],
                "data_offsets": [begin, len(content)],
            }
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    weights.write_bytes(struct.pack("<Q", len(told)) + told + content)
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "frozen",
        "config_groups": {},
        "ignore": [],
        "kv_cache_scheme": SCHEME,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder

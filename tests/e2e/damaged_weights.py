"""Changes of a checkpoint's weights that a quantizer or an engine could make."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np


def change_weights(model: Path, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
    """Rewrite each tensor of bfloat16, the first half of a float."""
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    for name, about in json.loads(data[8 : 8 + size]).items():
        if about.get("dtype") == "BF16":
            start, end = (8 + size + offset for offset in about["data_offsets"])
            changed = change(name, as_floats(data[start:end]).reshape(about["shape"]))
            data[start:end] = as_bfloat16(changed)
    file.write_bytes(data)


def double_projection(model: Path) -> None:
    """One projection is twice as large, as by a scale that is applied twice."""
    change_weights(model, lambda name, was: was * (1 + ("layers.10.mlp.down_proj" in name)))


def scale_head_row(model: Path, token: int, factor: float) -> None:
    """Give the model a separate head, in which one token's row is scaled."""
    (file,) = model.glob("*.safetensors")
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    content = data[8 + size :]
    about = header["model.embed_tokens.weight"]
    start, end = about["data_offsets"]
    head = as_floats(content[start:end]).reshape(about["shape"]).copy()
    head[token] *= factor
    header["lm_head.weight"] = {
        **about,
        "data_offsets": [len(content), len(content) + end - start],
    }
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    content += as_bfloat16(head)
    file.write_bytes(struct.pack("<Q", len(told)) + told + content)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def as_floats(data: bytes | bytearray) -> np.ndarray:
    """Return numbers of bfloat16 as floats."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def as_bfloat16(values: np.ndarray) -> bytes:
    """Return floats as bfloat16, cut off."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16).tobytes()

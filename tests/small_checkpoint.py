"""Writes real, tiny checkpoints: a few tensors, a config and a tokenizer, as bytes by file name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

BITS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "I32": 32, "I64": 64, "F4": 4, "U8": 8}


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...]]], **metadata: str) -> bytes:
    """A safetensors file with these (dtype, shape), every byte of data being 7."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        elements = 1
        for size in shape:
            elements *= size
        size = elements * BITS[dtype] // 8
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\7" * position


def checkpoint_files(shards: int = 1) -> dict[str, bytes]:
    """A whole checkpoint: 4 matrices of 8 x 4 in bf16, in one file or spread over shards."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 4096,
    }
    files = {
        "config.json": json.dumps(config).encode(),
        "generation_config.json": b'{"eos_token_id": 2}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }
    tensors = {f"layers.{n}.weight": ("BF16", (8, 4)) for n in range(4)}
    if shards == 1:
        return files | {"model.safetensors": safetensors(tensors, format="pt")}
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {t: tensors[t] for n, t in enumerate(tensors) if n % shards == shard}
        files[name] = safetensors(part)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 256}, "weight_map": weight_map}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write them into `folder`, made if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder

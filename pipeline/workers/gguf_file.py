"""A checkpoint as GGUF in bf16, and reading of GGUF files."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import StageError
from pipeline.workers.gguf_types import ModelFacts

QUANTIZER_KEYS = ("general.file_type", "general.quantization_version")


@contextlib.contextmanager
def converted(checkpoint: Path, *, trust_remote_code: bool, folder: Path) -> Iterator[Any]:
    """Yield a reader of the checkpoint as GGUF; the file has no name, and vanishes.

    Args:
        folder: on the disk that takes the file, as large as the checkpoint.

    Raises:
        StageError: llama.cpp's converter does not take the model.
    """
    from gguf import GGUFReader
    from prepare_llamacpp.convert import write_gguf

    with tempfile.TemporaryFile(dir=folder) as file:
        place = f"/proc/self/fd/{file.fileno()}"
        try:
            write_gguf(
                checkpoint, place, trust_remote_code=trust_remote_code, descriptor=file.fileno()
            )
        except subprocess.CalledProcessError as error:
            raise StageError(
                "llama.cpp's converter does not take this model; its reason is in the log",
                hint="leave the recipes of the kind gguf out",
            ) from error
        yield GGUFReader(place)


def facts_of(reader: Any) -> ModelFacts:
    """Return what decides the types of tensors."""

    def number(key: str) -> int:
        field = reader.get_field(f"{architecture}.{key}")
        value = field.contents() if field else 0
        return value if isinstance(value, int) else 0

    architecture = reader.get_field("general.architecture").contents()
    heads, key_heads = number("attention.head_count"), number("attention.head_count_kv")
    return ModelFacts(
        layers=number("block_count"),
        has_output=any(tensor.name == "output.weight" for tensor in reader.tensors),
        grouped=heads // key_heads if key_heads else 1,
    )


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's shape, outermost dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def settings_of(reader: Any) -> dict[str, Any]:
    """Return a file's values by key, without those that quantization sets."""
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.") and name not in QUANTIZER_KEYS
    }

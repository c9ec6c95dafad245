"""What the quantize stage keeps: next to the weights, and of a try that was killed.

The rest is tests/e2e/test_recipes.py.
"""

from __future__ import annotations

from pathlib import Path

from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, write_files

from pipeline.stages.quantize import (
    copy_carried_over,
)


def test_what_is_carried_over(tmp_path: Path) -> None:
    """Under any name of its vocabulary (Qwen's first models: qwen.tiktoken), and its code."""
    own = {
        "qwen.tiktoken": b"IQ== 0",
        "sentencepiece.bpe.model": b"pieces",
        "tokenization_qwen.py": b"VOCABULARY = 'qwen.tiktoken'",
    }
    made = {
        "config.json": b"{}",
        "model.safetensors": b"quantized",
        "tokenizer.json": b"saved again",
        "vocab.txt": b"not the source's",
        "tokenizer.model": b"nor this",
    }
    files = checkpoint_files()
    source = inspected(write_files(tmp_path / "model", files | own))
    output = write_files(tmp_path / "output", made)
    copy_carried_over(source, output)
    own |= {name: files[name] for name in files if name not in ("config.json", "model.safetensors")}
    kept = {"config.json": b"{}", "model.safetensors": b"quantized"}
    assert {file.name: file.read_bytes() for file in output.iterdir()} == own | kept

"""What the quantize stage keeps: next to the weights, and of a try that was killed.

The rest is tests/e2e/test_recipes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from listener import Listener
from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, write_files

from pipeline.stages.context import StageContext
from pipeline.stages.quantize import (
    QUANTIZE,
    QuantizeParameters,
    QuantizeRuntime,
    copy_carried_over,
    run,
)
from prepare.errors import VerificationError
from prepare.store import Store
from recipes.catalog import load_recipe
from recipes.weights.auxiliary_files import check_auxiliary_files


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
    copy_carried_over(source.place, output)
    own |= {name: files[name] for name in files if name not in ("config.json", "model.safetensors")}
    kept = {"config.json": b"{}", "model.safetensors": b"quantized"}
    assert {file.name: file.read_bytes() for file in output.iterdir()} == own | kept


def test_named_chat_templates_are_the_sources(tmp_path: Path) -> None:
    """Saving a list of templates makes a folder, which loaders would read in the list's place."""
    templates = "additional_chat_templates"
    for name, source_has_folder in (("list", False), ("folder", True)):
        folder = write_files(tmp_path / name / "source", checkpoint_files())
        output = write_files(tmp_path / name / "output", {"model.safetensors": b"quantized"})
        if source_has_folder:
            write_files(folder / templates, {"tool_use.jinja": b"source's"})
        write_files(output / templates, {"tool_use.jinja": b"saved", "rag.jinja": b"added"})
        with pytest.raises(VerificationError, match=templates):
            check_auxiliary_files(folder, output)
        copy_carried_over(inspected(folder).place, output)
        check_auxiliary_files(folder, output)
        carried = {file.name: file.read_bytes() for file in (output / templates).iterdir()}
        assert carried == ({"tool_use.jinja": b"source's"} if source_has_folder else {})


def test_no_token_reaches_code_that_came_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token fetches calibration rows in a process that loads nothing of the checkpoint."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/sh
env > "$5/$2.environment"
[ "$2" = recipes.quantizers.calibration ] && echo '{"ok": true, "result": {}}' > "$4"
"""
    )
    python.chmod(0o755)
    parameters = QuantizeParameters(
        checkpoint="",
        quantization=load_recipe("awq-w4a16").quantization,
        environment="",
        trust_remote_code=True,
    )
    source = inspected(write_files(tmp_path / "model", checkpoint_files()))
    runtime = QuantizeRuntime(checkpoint=source.place, python=str(python), needs_hub=True)
    spec = QUANTIZE.spec("v", parameters, {}, runtime, tmp_path / "store")
    with pytest.raises(Exception, match="no result"):
        run(StageContext(spec, tmp_path, Store(tmp_path / "store"), Listener()))
    found = {file.stem: file.read_text() for file in tmp_path.rglob("*.environment")}
    assert ["HF_TOKEN=secret" in found[name] for name in sorted(found)] == [True, False]

"""What the quantize stage keeps: next to the weights, and of a try that was killed.

The rest is tests/e2e/test_recipes.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from listener import Listener
from loose_stage import stage_spec
from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, safetensors, write_files

from pipeline.core.errors import StoreError
from pipeline.core.store import Store
from pipeline.inspection.variant_size import estimated_bytes
from pipeline.stages.context import StageContext
from pipeline.stages.quantize.run import (
    RESOLVED_RECIPE,
    check_space,
    copy_carried_over,
    keep_recipe,
)
from recipes.catalog import load_recipe
from recipes.schema import Recipe


def test_the_recipe_as_it_was_used(tmp_path: Path) -> None:
    """Limited by the profile, its ignore list resolved: not what the file says, but what was."""
    recipe = load_recipe("awq-w4a16-sym")
    calibration = recipe.quantization.calibration
    assert calibration is not None
    source = inspected(write_files(tmp_path / "model", checkpoint_files())).model_dump(mode="json")
    used = recipe.quantization.model_copy(
        update={
            "calibration": calibration.model_copy(update={"samples": 8}),
            "ignore": ["lm_head", r"re:(.*\.)?(gate)(\..*)?$"],
        }
    )
    spec = stage_spec(
        "quantize",
        recipe.name,
        {"checkpoint": "c", "environment": "e", "quantization": used.model_dump()},
        {},
        {"checkpoint": source, "recipe": recipe.model_dump(mode="json")},
        tmp_path / "store",
    )
    keep_recipe(StageContext(spec, tmp_path, Store(tmp_path / "store"), Listener()))
    kept = Recipe.model_validate(json.loads((tmp_path / RESOLVED_RECIPE).read_text()))
    assert kept == recipe.model_copy(update={"quantization": used})


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


class TestSpace:
    """What is asked of the disk is what the variant will take."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A matrix of a million weights, in 16 bits."""
        files = checkpoint_files()
        files["model.safetensors"] = safetensors({"layers.0.weight": ("BF16", (1024, 1024))})
        return write_files(tmp_path / "model", files)

    @pytest.fixture
    def output(self, tmp_path: Path) -> Path:
        folder = tmp_path / "output"
        folder.mkdir()
        return folder

    def disk(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        usage = shutil.disk_usage("/")._replace(free=free)
        monkeypatch.setattr("pipeline.stages.quantize.run.shutil.disk_usage", lambda _: usage)

    @pytest.mark.parametrize(
        ("name", "bits"), [("fp8-dynamic", 8), ("awq-w4a16", 4), ("autoawq-w4a16", 4)]
    )
    def test_of_the_variant_and_not_of_the_source(
        self, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, name: str, bits: int
    ) -> None:
        quantization = load_recipe(name).quantization
        needed = estimated_bytes(source, quantization)
        assert 2**20 * bits // 8 < needed < 2**20 * (bits + 1) // 8
        self.disk(monkeypatch, needed)
        check_space(output, source, quantization)
        self.disk(monkeypatch, needed - 1)
        with pytest.raises(StoreError) as caught:
            check_space(output, source, quantization)
        assert caught.value.where == str(output)
        assert "--store DIR" in caught.value.hint

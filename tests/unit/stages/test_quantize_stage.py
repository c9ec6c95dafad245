"""What the quantize stage keeps: next to the weights, and of a try that was killed.

The rest is tests/e2e/test_recipes.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from listener import Listener
from loose_stage import stage_spec
from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, write_files

from pipeline.core.store import Store
from pipeline.stages.context import StageContext
from pipeline.stages.quantize import (
    RESOLVED_RECIPE,
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

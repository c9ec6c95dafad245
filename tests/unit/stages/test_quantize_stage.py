"""What the quantize stage keeps beside the weights; the rest is tests/e2e/test_recipes.py."""

from __future__ import annotations

import json
from pathlib import Path

from listener import Listener

from pipeline.catalog import load_recipe
from pipeline.plan import stage_spec
from pipeline.stages.context import StageContext
from pipeline.stages.quantize import RESOLVED_RECIPE, keep_recipe
from pipeline.store import Store
from recipes.schema import Recipe


def test_the_recipe_as_it_was_used(tmp_path: Path) -> None:
    """Limited by the profile, its ignore list resolved: not what the file says, but what was."""
    recipe = load_recipe("awq-w4a16-sym")
    calibration = recipe.quantization.calibration
    assert calibration is not None
    used = recipe.quantization.model_copy(
        update={
            "calibration": calibration.model_copy(update={"samples": 8}),
            "ignore": ["lm_head", r"re:(.*\.)?(gate)(\..*)?$"],
        }
    )
    spec = stage_spec(
        "quantize",
        recipe.name,
        {"quantization": used.model_dump()},
        {},
        {"recipe": recipe.model_dump(mode="json")},
        tmp_path / "store",
    )
    keep_recipe(StageContext(spec, tmp_path, Store(tmp_path / "store"), Listener()))
    kept = Recipe.model_validate(json.loads((tmp_path / RESOLVED_RECIPE).read_text()))
    assert kept == recipe.model_copy(update={"quantization": used})

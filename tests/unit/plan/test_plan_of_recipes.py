"""What the stages are told of a recipe: ignore lists by architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, safetensors, write_files
from some_node import NODE

from pipeline.core.digest import FileDigests
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.model_plan import ModelPlanner
from pipeline.plan.plan import Arm
from recipes.catalog import load_policy, load_profile, load_recipe
from recipes.schema import Recipe

LAYER = "model.layers.0"
MOE_MODEL: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("BF16", (32, 128)),
    f"{LAYER}.self_attn.q_proj.weight": ("BF16", (128, 128)),
    f"{LAYER}.block_sparse_moe.gate.weight": ("BF16", (4, 128)),
    f"{LAYER}.block_sparse_moe.experts.0.w1.weight": ("BF16", (128, 128)),
    "lm_head.weight": ("BF16", (32, 128)),
}
ROUTERS = r"re:(.*\.)?(gate|router|shared_expert_gate)(\..*)?$"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", MOE_MODEL)


def write_checkpoint(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    files = checkpoint_files()
    config = json.loads(files["config.json"]) | {"num_hidden_layers": 1}
    changed = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": safetensors(tensors),
    }
    return write_files(folder, files | changed)


def planned(folder: Path, recipe: Recipe, profile: str = "cpu") -> Arm:
    digests = FileDigests(folder.parent / "digests.json")
    plan = ModelPlanner(
        checkpoint=inspected(folder),
        profile=load_profile(profile),
        policy=load_policy("demo"),
        recipes=(recipe,),
        baseline=load_recipe("baseline"),
        identities={"quantize": "q", "serve": "s", "evaluate": "e"},
        node=NODE,
        sources=SourceResolver(None, "e", digests, Listener()),
        store=folder.parent / "store",
    ).plan()
    return plan.variants[0]


def carried(name: str, **changes: Any) -> Recipe:
    recipe = load_recipe(name)
    calibration = recipe.quantization.calibration
    if calibration is not None:
        texts = {"dataset": "builtin", "column": "text"}
        changes["calibration"] = calibration.model_copy(update=texts)
    changed = recipe.quantization.model_copy(update=changes)
    return recipe.model_copy(update={"quantization": changed})


@pytest.mark.parametrize("name", ["fp8-dynamic", "gptq-w4a16"])
def test_routers_are_ignored_by_both_stages_and_said(folder: Path, name: str) -> None:
    stages = planned(folder, carried(name)).stages
    quantize, check_weights = stages["quantize"], stages["check_weights"]
    assert quantize.parameters["quantization"]["ignore"] == ["lm_head", ROUTERS]
    told = check_weights.parameters["quantization"]
    same = set(told) - {"calibration"}
    assert {key: told[key] for key in same} == {
        key: quantize.parameters["quantization"][key] for key in same
    }
    assert (told["calibration"] or {}).get("dataset") is None
    assert quantize.runtime["left_alone"] == "routers (1 layers)"
    assert quantize.runtime["recipe"]["name"] == name


def test_a_router_that_the_recipe_names_itself_is_not_said_again(folder: Path) -> None:
    stages = planned(folder, carried("fp8-dynamic", ignore=["lm_head", "*.gate"])).stages
    assert stages["quantize"].runtime["left_alone"] == ""
    assert len(stages["quantize"].parameters["quantization"]["ignore"]) == 2

"""How many GPUs a run spreads a copy over: the request's number, the profile's, or the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asked_run import request_for
from published_models import LLAMA_3_8B, LLAMA_3_70B, QWEN_3_235B, Shapes, dense, qwen3_moe, source
from some_node import NODE

from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from pipeline.preflight.gpu_fit import spread_over_gpus
from prepare.errors import UsageError
from prepare.gpus import VisibleGpu
from recipes.schema import ServingProfile


def write_headers(folder: Path, config: dict[str, Any], shapes: Shapes) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = source(config, shapes).tensors
    header = json.dumps(
        {
            name: {
                "dtype": each.dtype,
                "shape": list(each.shape),
                "data_offsets": [each.begin, each.end],
            }
            for name, each in tensors.items()
        }
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + max(each.end for each in tensors.values()))
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {
        "8b": (LLAMA_3_8B, dense(LLAMA_3_8B)),
        "70b": (LLAMA_3_70B, dense(LLAMA_3_70B)),
        "235b": (QWEN_3_235B, qwen3_moe(QWEN_3_235B)),
    }
    return {name: str(write_headers(folder / name, *each)) for name, each in made.items()}


def served(tmp_path: Path, checkpoint: str, gpus: int = 8, **options: Any) -> ServingProfile:
    card = VisibleGpu("NVIDIA H100 80GB HBM3", "GPU-1", compute_capability=9.0)
    node = NODE.model_copy(update={"gpus": (card,) * gpus})
    settings = Settings(home=tmp_path, store=tmp_path / "store")
    request = request_for(checkpoint, **options)
    return spread_over_gpus(choose(request, settings, node), settings).profile


@pytest.mark.parametrize(
    ("name", "recipes", "gpus", "experts"),
    [
        ("8b", (), 1, None),
        ("70b", (), 4, None),
        ("235b", ("fp8-block",), 8, True),
        ("235b", ("fp8-dynamic",), 8, None),
    ],
)
def test_the_best_by_itself(
    tmp_path: Path,
    checkpoints: dict[str, str],
    name: str,
    recipes: tuple[str, ...],
    gpus: int,
    experts: bool | None,
) -> None:
    arguments = served(tmp_path, checkpoints[name], recipes=recipes).engine_arguments
    assert arguments["tensor-parallel-size"] == gpus
    assert arguments.get("enable-expert-parallel") is experts


def test_the_requests_number_comes_before_the_profiles(
    tmp_path: Path, checkpoints: dict[str, str]
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nextends: h100\nengine_arguments: {tensor-parallel-size: 8}\n")
    checkpoint = checkpoints["70b"]
    assert served(tmp_path, checkpoint, profile=str(own)).gpus_a_copy == 8
    assert served(tmp_path, checkpoint, profile=str(own), gpus_a_copy=4).gpus_a_copy == 4
    assert served(tmp_path, checkpoint, gpus_a_copy=8).gpus_a_copy == 8
    with pytest.raises(UsageError):
        served(tmp_path, checkpoint, gpus=4, gpus_a_copy=8)

"""llama.cpp for real: GGUF variants of the demo model are made, verified, served and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prepare_command import prepare

from recipes.weight_format import GGUF_WEIGHTS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.of_everything]

MODEL = ("demo:smollm2-135m", "--profile", "cpu-llamacpp")
RECIPES = ("--recipe", "gguf-q8-0", "--recipe", "gguf-q2-k")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llamacpp") / "store"


@pytest.fixture(scope="module")
def report(store: Path) -> dict[str, Any]:
    registry = f"sqlite:///{store.parent}/registry.db"
    found = prepare(
        store, "model", *MODEL, *RECIPES, "--registry", registry, "--json", timeout=3400
    )
    assert found.returncode == 0, found.stderr[-3000:]
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_eight_bits_are_promoted_and_two_are_not(report: dict[str, Any], store: Path) -> None:
    variants = {each["recipe"]: each for each in report["variants"]}
    assert {name: each["promoted"] for name, each in variants.items()} == {
        "gguf-q8-0": True,
        "gguf-q2-k": False,
    }
    sizes = {name: each["weights_bytes"] for name, each in variants.items()}
    assert sizes["gguf-q2-k"] < 90e6 < sizes["gguf-q8-0"] < 150e6


def test_the_tuple_names_engine_cache_and_arguments(report: dict[str, Any], store: Path) -> None:
    registry = ("--registry", f"sqlite:///{store.parent}/registry.db")
    found = prepare(store, "registry", "list", "--json", *registry)
    (champion,) = [each for each in json.loads(found.stdout) if "champion" in each["aliases"]]
    serving = json.loads(champion["tags"]["prepare.serving"])
    assert serving["engine"] == "llamacpp"
    assert serving["engine_arguments"]["kv-cache-dtype"] == "q8_0"
    assert serving["engine_arguments"]["max-model-len"] == 2048
    weights = Path(champion["source"])
    assert [file.name for file in weights.glob("*.gguf")] == [GGUF_WEIGHTS]
    assert not list(weights.glob("*.safetensors"))
    card = (weights / "README.md").read_text(encoding="utf-8")
    assert "llama-server --model ./model.gguf" in card
    assert "pip install" not in card  # the engine's package lacks that program


def test_verdicts_follow_from_the_answers(report: dict[str, Any], store: Path) -> None:
    found = prepare(store, "verify", "latest", "--json")
    assert found.returncode == 0, found.stdout
    assert json.loads(found.stdout)["same"]


def test_choices_were_scored_over_the_whole_vocabulary(report: dict[str, Any], store: Path) -> None:
    (quiz,) = [
        stage
        for stage in report["stages"]
        if (stage["name"], stage["variant"]) == ("evaluate quiz", "baseline")
    ]
    record = json.loads((store / "stages" / "evaluate" / quiz["key"] / "stage.json").read_text())
    requests = record["result"]["requests"]
    assert requests["scored"] == requests["fallen_back"] == 0
    # Four choices a question; choices that begin alike share requests.
    assert requests["one_request"] == 4 * record["result"]["n"] > requests["requests"]
    assert record["result"]["score"] > 0.6  # 0.25 by chance

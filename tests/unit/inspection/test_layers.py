"""Memory of the layers of published models, against vLLM 0.33's own count.

`make test-cuda-build` asks vLLM again and writes `engine_kv_tokens.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import CheckpointError
from pipeline.inspection.layers import (
    ELEMENT_BYTES,
    Layer,
    UnknownLayersError,
    read_layers,
    sequence_bytes,
)
from pipeline.inspection.model_shape import model_shape

FOLDER = Path(__file__).parents[2] / "cuda_build"
MEMORY = 2**40
ENGINE: dict[str, dict[str, int]] = json.loads((FOLDER / "engine_kv_tokens.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = {
    each["name"]: each["config"]
    for each in map(json.loads, (FOLDER / "published_configs.jsonl").read_text().splitlines())
}


def layers_of(config: dict[str, Any]) -> tuple[Layer, ...]:
    return read_layers(config, model_shape(config, "config.json"), "config.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_near_those_of_the_engine(name: str) -> None:
    layers, engine = layers_of(CONFIGS[name]), ENGINE[name]
    # vLLM gives the six windowed groups of Gemma 3 blocks of one size, and fills up the last.
    error = 0.07 if "gemma-3" in name else 0.025
    for kind in ("auto", "fp8"):
        one = sequence_bytes(layers, engine["context"], ELEMENT_BYTES[kind], held=2 * 8192)
        assert MEMORY / one * engine["context"] == pytest.approx(engine[kind], rel=error)


def test_gpus_divide_heads_and_states_but_replicate_what_they_cannot() -> None:
    layer = Layer(heads=2, width=100, state_bytes=30)
    assert layer.token_bytes(2, 1) == 2 * layer.token_bytes(2, 2) == 400
    assert layer.token_bytes(2, 8) == layer.token_bytes(2, 2)
    assert sequence_bytes([layer], 1, 2, gpus=2, block=16) == 16 * 200 + 45


GRANITE = CONFIGS["ibm-granite/granite-4.0-h-tiny"]
NEMOTRON = CONFIGS["nvidia/Nemotron-H-8B-Base-8K"]
KIMI = CONFIGS["moonshotai/Kimi-Linear-48B-A3B-Instruct"]
GEMMA_4 = CONFIGS["google/gemma-4-31B-it (text)"]


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (GRANITE, {"layer_types": ["attention"] * 39 + ["retention"]}),
        (GRANITE, {"layer_types": ["attention"] * 39 + [7]}),
        (GRANITE, {"mamba_d_state": None}),
        (NEMOTRON, {"hybrid_override_pattern": "M" * 51 + "Z"}),
        (NEMOTRON, {"hybrid_override_pattern": None}),
        (NEMOTRON, {"hybrid_override_pattern": "M" * 52}),
        (KIMI, {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2]}}),
        (KIMI, {"linear_attn_config": {"full_attn_layers": "all", "kda_layers": [2]}}),
        (GEMMA_4, {"per_layer_config": {"05": {"head_dim": 512}}}),
        # As DeepSeek-V4 publishes it, and as transformers saves it.
        (GEMMA_4, {"compress_ratios": [4, 128] * 30}),
        (GRANITE, {"layer_types": ["heavily_compressed_attention"] * 40}),
        (GEMMA_4, {"v_head_dim": 128}),
        (GEMMA_4, {"sliding_window_pattern": "LX", "layer_types": None}),
    ],
)
def test_an_unknown_pattern_gives_no_number(config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(UnknownLayersError):
        layers_of(config | change)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CheckpointError, match="layer_types"):
        layers_of(GRANITE | {"layer_types": ["attention"] * 39})

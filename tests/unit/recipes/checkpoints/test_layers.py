"""Memory of the layers of published models, against vLLM 0.33's own count.

`make test-cuda-build` asks vLLM again and writes `engine_kv_tokens.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepare.errors import CheckpointError
from recipes.checkpoints.layers import (
    STORED,
    Layer,
    Stored,
    UnknownLayersError,
    read_layers,
    sequence_bytes,
)
from recipes.checkpoints.model_shape import model_shape
from recipes.engines.vllm import HOPPER_CACHES, Vllm

FOLDER = Path(__file__).parents[3] / "cuda_build"
MEMORY = 2**40
ENGINE: dict[str, dict[str, int]] = json.loads((FOLDER / "engine_kv_tokens.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = {
    each["name"]: each["config"]
    for each in map(json.loads, (FOLDER / "published_configs.jsonl").read_text().splitlines())
}


def layers_of(config: dict[str, Any]) -> tuple[Layer, ...]:
    return read_layers(config, model_shape(config, "config.json"), "config.json")


# Layers without attention are known of Qwen's models alone.
UNKNOWN = [
    name
    for name in CONFIGS
    if any(word in name for word in ("Nemotron", "granite-4", "Kimi-Linear", "Falcon-H1", "LFM2"))
    or name in ("ai21labs/Jamba-Mini-1.7", "openbmb/MiniCPM3-4B")
]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_read_gives_no_number(name: str) -> None:
    with pytest.raises(UnknownLayersError):
        layers_of(CONFIGS[name])


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in UNKNOWN])
def test_tokens_are_near_those_of_the_engine(name: str) -> None:
    layers, engine = layers_of(CONFIGS[name]), ENGINE[name]
    # vLLM gives the six windowed groups of Gemma 3 blocks of one size, and fills up the last.
    error = 0.07 if "gemma-3" in name else 0.025
    for kind in ("auto", "fp8"):
        one = sequence_bytes(layers, engine["context"], STORED[kind], held=2 * 8192)
        assert MEMORY / one * engine["context"] == pytest.approx(engine[kind], rel=error)


FORMATS: dict[str, int | None] = json.loads((FOLDER / "engine_kv_formats.json").read_text())


@pytest.mark.parametrize("name", [name for name, tokens in FORMATS.items() if tokens])
def test_each_format_that_the_cuda_build_takes_has_the_engines_tokens(name: str) -> None:
    """None is planned for TurboQuant: it leaves some layers in 16 bits."""
    config = CONFIGS["meta-llama/Llama-3.1-8B"]
    stored = STORED.get(name)
    assert name in HOPPER_CACHES
    if stored is None:
        assert name.startswith("turboquant")
        return
    context = config["max_position_embeddings"]
    one = sequence_bytes(layers_of(config), context, stored)
    tokens = FORMATS[name]
    assert tokens is not None
    assert 0 <= MEMORY / one * context - tokens < 16  # the engine's are whole blocks


@pytest.mark.parametrize("name", [name for name, tokens in FORMATS.items() if not tokens])
def test_a_format_that_it_refuses_is_refused_on_hopper_alone(name: str) -> None:
    config = CONFIGS["meta-llama/Llama-3.1-8B"]
    latent = CONFIGS["deepseek-ai/DeepSeek-V3.2"]
    lacks = Vllm().lacks_cache
    is_16_bits = name == "float16"  # with weights of that type
    assert bool(lacks(name, config, 9.0)) is not is_16_bits
    assert not lacks(name, config, 10.0)
    assert bool(lacks(name, latent, 9.0)) is not (is_16_bits or name.endswith("_ds_mla"))


def test_gpus_divide_heads_and_states_but_replicate_what_they_cannot() -> None:
    layer = Layer(heads=2, width=100, state_bytes=30)
    plain = STORED["auto"]
    assert layer.token_bytes(plain, 1) == 2 * layer.token_bytes(plain, 2) == 400
    assert layer.token_bytes(plain, 8) == layer.token_bytes(plain, 2)
    assert sequence_bytes([layer], 1, Stored(2), gpus=2, block=16) == 16 * 200 + 45


QWEN = CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"]
GEMMA_4 = CONFIGS["google/gemma-4-31B-it (text)"]


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (GEMMA_4, {"layer_types": ["full_attention"] * 59 + ["retention"]}),
        (GEMMA_4, {"layer_types": ["full_attention"] * 59 + [7]}),
        (QWEN, {"linear_num_key_heads": None}),
        (GEMMA_4, {"per_layer_config": {"05": {"head_dim": 512}}}),
        # As DeepSeek-V4 publishes it, and as transformers saves it.
        (GEMMA_4, {"compress_ratios": [4, 128] * 30}),
        (GEMMA_4, {"v_head_dim": 128}),
        (GEMMA_4, {"sliding_window_pattern": "LX", "layer_types": None}),
    ],
)
def test_an_unknown_pattern_gives_no_number(config: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(UnknownLayersError):
        layers_of(config | change)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CheckpointError, match="layer_types"):
        layers_of(GEMMA_4 | {"layer_types": ["full_attention"] * 39})

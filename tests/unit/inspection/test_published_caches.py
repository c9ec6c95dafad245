"""Caches of published models, as vLLM 0.33 itself counts them.

`make test-cuda-build` asks vLLM again and writes `engine_kv_tokens.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.inspection.kv_cache import ELEMENT_BYTES, KvCacheSpec, kv_cache
from pipeline.inspection.model_shape import model_shape

FOLDER = Path(__file__).parents[2] / "cuda_build"
MEMORY = 2**40
ENGINE: dict[str, dict[str, int]] = json.loads((FOLDER / "engine_kv_tokens.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = {
    each["name"]: each["config"]
    for each in map(json.loads, (FOLDER / "published_configs.jsonl").read_text().splitlines())
}


def cached(config: dict[str, Any]) -> KvCacheSpec:
    return kv_cache(config, model_shape(config, "config.json"), "config.json")


def test_there_are_many_and_all_were_asked() -> None:
    assert set(ENGINE) == set(CONFIGS)
    assert len(ENGINE) >= 30


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_the_engine_(name: str) -> None:
    spec, engine = cached(CONFIGS[name]), ENGINE[name]
    assert spec.unknown == ""
    for kind in ("auto", "fp8"):
        found = spec.capacity(
            MEMORY,
            context=engine["context"],
            block_size=16,
            element_bytes=ELEMENT_BYTES[kind],
            in_flight=8192,
        )
        assert found.tokens == pytest.approx(engine[kind], rel=0.02)


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
    spec = cached(config | change)
    assert spec.unknown
    assert spec.layers == ()

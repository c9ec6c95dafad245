"""Models with states, unknown caches and stored scales on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_3_8B,
    dense,
    gpt_oss,
    inspected,
    source,
)

from pipeline.capacity.gpu_plan import CapacityPlan, capacity_plan
from pipeline.capacity.sharding import shards
from pipeline.cli.capacity_tables import cache_line, hints, refusals
from pipeline.inspection.inspection import CheckpointInspection, inspect
from recipes import catalog

BASELINE = catalog.load_recipe("baseline")
UNKNOWN = LLAMA_3_8B | {"layer_types": ["full_attention"] * 31 + ["retention"]}
NEMOTRON = LLAMA_3_8B | {
    "model_type": "nemotron_h",
    "num_hidden_layers": 3,
    "hybrid_override_pattern": "M*-",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}


def planned(model: CheckpointInspection, gpus: int = 1, **more: Any) -> CapacityPlan:
    return capacity_plan(model, [], catalog.load_gpu("h100"), gpus, profile=None, **more)


def test_an_unknown_cache_never_fits_and_has_no_number() -> None:
    plan = planned(inspected(UNKNOWN, dense(LLAMA_3_8B)), 2)
    assert [(each.fits, each.obstacle) for each in plan.fits] == [(False, "cache")] * 2
    assert {(each.tokens, each.sequences) for each in plan.fits} == {(None, None)}
    assert plan.best("baseline") is None
    shown = [cache_line(plan.site.inspection), *refusals(plan), *hints(plan)]
    assert all("not known" in line for line in shown)
    cache = plan.to_dict()["checkpoint"]["kv_cache"]
    assert cache["bytes_per_token_16_bit"] is None
    assert "retention" in cache["unknown"]


def test_weights_that_are_too_large_are_refused_without_a_known_cache() -> None:
    large = UNKNOWN | {"intermediate_size": 200_000}
    [fit] = planned(inspected(large, dense(large))).fits
    assert fit.obstacle == "weights"


def test_no_room_for_one_sequence_does_not_fit() -> None:
    plan = planned(inspected(NEMOTRON, dense(LLAMA_3_8B) | {"x.mixer.in_proj.weight": (9, 9)}))
    assert plan.fits[0].fits
    one = inspected(NEMOTRON | {"mamba_num_heads": 10**7}, dense(LLAMA_3_8B))
    assert [each.obstacle for each in planned(one).fits] == ["context"]


def test_state_space_weights_are_divided() -> None:
    shapes = {f"backbone.layers.{n}.mixer.in_proj.weight": (18560, 4096) for n in range(3)}
    model = inspected(NEMOTRON, shapes)
    found = shards(model, model.variant(BASELINE.quantization))
    assert found.bytes_on_gpu(8) == pytest.approx(found.bytes_on_gpu(1) / 8)


def test_block_scales_are_no_matrices() -> None:
    stored = dense(LLAMA_3_8B) | {
        f"model.layers.{n}.self_attn.q_proj.weight_scale_inv": (4, 32) for n in range(32)
    }
    model = inspect(source(LLAMA_3_8B, stored))
    found = shards(model, model.variant(BASELINE.quantization))
    assert 4 not in found.rows
    assert found.obstacle(8) == ""


def test_the_index_of_sparse_attention_takes_memory() -> None:
    tokens = [
        inspect(source(DEEPSEEK_V3 | more, {"x.weight": (1, 1)})).cache.token_bytes(2)
        for more in ({}, {"index_head_dim": 128})
    ]
    assert tokens[1] - tokens[0] == 61 * (128 + 4)


@pytest.mark.parametrize(
    ("gpu", "fits"), [("h100", True), ("b200", False), ("rtx-pro-6000", False)]
)
def test_int8_has_no_kernels_on_blackwell(gpu: str, fits: bool) -> None:
    int8 = catalog.load_recipe("int8-w8a8")
    plan = capacity_plan(inspected(LLAMA_3_8B), [int8], catalog.load_gpu(gpu), 1, profile=None)
    [found] = [each for each in plan.fits if each.variant == "int8-w8a8"]
    assert found.fits == fits
    assert fits or ("9.0 only" in found.reason and "h100" in found.hint)


def test_what_a_run_refuses_does_not_fit() -> None:
    stacks = dense(LLAMA_3_8B) | {"model.layers.0.mlp.experts.up_proj": (8, 64, 64)}
    awq, fp8 = catalog.load_recipe("awq-w4a16"), catalog.load_recipe("fp8-dynamic")
    model = inspected(LLAMA_3_8B, stacks)
    plan = capacity_plan(model, [awq, fp8], catalog.load_gpu("h100"), 1, profile=None)
    found = {each.variant: each for each in plan.fits}
    assert found["fp8-dynamic"].fits
    assert found["awq-w4a16"].obstacle == "recipe"
    assert "fp8-dynamic" in found["awq-w4a16"].hint
    own = {"architectures": ["MineForSpeech"], "auto_map": {"AutoModel": "mine.Mine"}}
    strange = inspected(LLAMA_3_8B | own, dense(LLAMA_3_8B))
    notes = " ".join(planned(strange).notes)
    assert "MineForSpeech" in notes
    assert "--trust-remote-code" in notes


def test_packed_bytes_are_no_parameters() -> None:
    model = inspected(GPT_OSS_120B, gpt_oss(GPT_OSS_120B))
    assert model.parameters_total / 1e9 == pytest.approx(116.8, abs=0.1)  # as published

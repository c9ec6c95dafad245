"""Ignore lists by architecture, on the tensor names of published checkpoints."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_models import (
    DEEPSEEK_V3,
    LLAMA_3_8B,
    MIXTRAL_8X22B,
    Shapes,
    deepseek,
    dense,
    mixtral,
    source,
)

from recipes.checkpoints.ignore_list import ignore_list
from recipes.checkpoints.module_kind import is_quantizable
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.module_lists import is_listed

# Qwen3-MoE, shared experts and a second router as in Qwen2-MoE, and a head for prediction.
QWEN_MOE: Shapes = {
    "model.embed_tokens.weight": (64, 32),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.mlp.gate.weight": (4, 32),
    "model.layers.0.mlp.experts.0.gate_proj.weight": (16, 32),
    "model.layers.0.mlp.shared_expert.gate_proj.weight": (16, 32),
    "model.layers.0.mlp.shared_expert_gate.weight": (1, 32),
    "mtp.layers.0.self_attn.q_proj.weight": (32, 32),
    "mtp.fc.weight": (32, 64),
    "lm_head.weight": (64, 32),
}
LLAVA: Shapes = {
    "language_model.model.embed_tokens.weight": (64, 32),
    "language_model.model.layers.0.mlp.gate_proj.weight": (32, 32),
    "language_model.lm_head.weight": (64, 32),
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": (32, 32),
    "multi_modal_projector.linear_1.weight": (32, 32),
}
QWEN_NEXT: Shapes = {
    "model.layers.0.linear_attn.in_proj_qkvz.weight": (64, 32),
    "model.layers.0.linear_attn.in_proj_ba.weight": (8, 32),
    "model.layers.0.linear_attn.conv1d.weight": (64, 1, 4),
    "model.layers.0.linear_attn.A_log": (4,),
    "model.layers.0.linear_attn.out_proj.weight": (32, 32),
    "model.layers.0.mlp.gate_proj.weight": (32, 32),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
}
CONFIG: dict[str, Any] = LLAMA_3_8B | {"num_hidden_layers": 1}


def quantized(
    config: dict[str, Any], shapes: Shapes, recipe: list[str] | None = None, *, fp8: bool = False
) -> set[str]:
    tensors = source(config, shapes).tensors
    ignore = ignore_list(tensors, config, ["lm_head"] if recipe is None else recipe, fp8=fp8)
    return {name for name, tensor in tensors.items() if is_quantizable(name, tensor, ignore)}


def test_mixtrals_routers() -> None:
    found = quantized(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B))
    assert len(found) == 56 * (4 + 8 * 3)
    assert not [name for name in found if ".gate." in name or "embed" in name]


def test_deepseeks_layer_after_the_last() -> None:
    found = quantized(DEEPSEEK_V3, deepseek(DEEPSEEK_V3))
    assert not [name for name in found if name.startswith("model.layers.61.")]
    assert "model.layers.60.mlp.experts.255.down_proj.weight" in found
    assert "model.layers.6.mlp.shared_experts.up_proj.weight" in found
    assert "model.layers.6.mlp.gate.weight" not in found


def test_qwens_two_routers_and_head_for_prediction() -> None:
    assert quantized(CONFIG, QWEN_MOE) == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.mlp.shared_expert.gate_proj.weight",
    }


def test_the_vision_tower_its_projector_and_a_head_by_a_longer_name() -> None:
    assert quantized(CONFIG, LLAVA) == {"language_model.model.layers.0.mlp.gate_proj.weight"}


def test_linear_attention_has_16_bits_or_fp8() -> None:
    others = {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.self_attn.q_proj.weight"}
    linear = "model.layers.0.linear_attn"
    assert quantized(CONFIG, QWEN_NEXT) == others
    fp8 = {f"{linear}.in_proj_qkvz.weight", f"{linear}.out_proj.weight"}
    assert quantized(CONFIG, QWEN_NEXT, fp8=True) == others | fp8
    # Qwen3.5 stores four matrices; the server merges two each.
    parts = {f"{linear}.in_proj_{part}.weight": (32, 32) for part in ("qkv", "z", "a", "b")}
    fp8 = {f"{linear}.in_proj_{part}.weight" for part in ("qkv", "z")}
    assert quantized(CONFIG, parts) == set()
    assert quantized(CONFIG, parts, fp8=True) == fp8


def test_experts_in_stacks() -> None:
    shapes: Shapes = {
        "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.mlp.router.weight": (4, 8),
        "model.layers.0.mlp.experts.gate_up_proj": (4, 8, 16),
        "model.layers.0.mlp.experts.down_proj": (4, 8, 8),
    }
    assert quantized(CONFIG, shapes) == {"model.layers.0.self_attn.q_proj.weight"}
    ignore = ignore_list(source(CONFIG, shapes).tensors, CONFIG, [])
    assert is_listed("model.layers.0.mlp.experts.0.up_proj", ignore)


def test_a_tied_head_is_the_embedding() -> None:
    """A user may quantize the head; tied, that would quantize the embedding."""
    shapes = dense(CONFIG)
    assert "lm_head.weight" in quantized(CONFIG, shapes, [])
    assert "lm_head.weight" not in quantized(CONFIG | {"tie_word_embeddings": True}, shapes, [])
    nested = {"text_config": CONFIG | {"tie_word_embeddings": True}}
    assert "lm_head.weight" not in quantized(nested, shapes, [])


def test_the_recipes_words_come_first_and_once() -> None:
    tensors = source(CONFIG, QWEN_MOE).tensors
    found = ignore_list(tensors, CONFIG, ["model.layers.0.self_attn.q_proj", "lm_head", "lm_head"])
    assert found[:2] == ["model.layers.0.self_attn.q_proj", "lm_head"]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("pattern", ["*.q_proj", "model.layers.?.self_attn.*", "*.[qk]_proj"])
def test_shell_patterns_become_expressions(pattern: str) -> None:
    """llm-compressor and vLLM know none; left as it is, the layer would be quantized."""
    tensors = source(CONFIG, dense(CONFIG)).tensors
    ignore = ignore_list(tensors, CONFIG, [pattern])
    assert all(not set(word) & set("*?[") or word.startswith("re:") for word in ignore)
    assert is_listed("model.layers.0.self_attn.q_proj", ignore)
    assert not is_listed("model.layers.0.mlp.up_proj", ignore)


@given(st.lists(st.sampled_from([*QWEN_MOE, *QWEN_NEXT, *LLAVA, *dense(CONFIG)]), unique=True))
def test_every_expression_is_one_and_the_list_is_its_own_fixed_point(names: list[str]) -> None:
    tensors = {name: TensorEntry("BF16", (32, 32), 0, 2048) for name in names}
    found = ignore_list(tensors, CONFIG, ["lm_head"])
    for word in found:
        re.compile(word.removeprefix("re:"))
    assert ignore_list(tensors, CONFIG, found) == found

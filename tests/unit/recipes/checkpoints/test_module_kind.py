"""Names of tensors in published checkpoints, and the kind of module each belongs to."""

from __future__ import annotations

import pytest

from recipes.checkpoints.module_kind import module_kind

LAYER = "model.layers.3"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embeddings"),
        ("transformer.wte.weight", "embeddings"),
        ("transformer.h.0.ln_1.weight", "norms"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("transformer.h.0.mlp.c_fc.weight", "mlp"),
        (f"{LAYER}.self_attn.q_proj.weight", "attention"),
        (f"{LAYER}.self_attn.q_norm.weight", "norms"),
        (f"{LAYER}.self_attn.kv_a_proj_with_mqa.weight", "attention"),
        (f"{LAYER}.self_attn.kv_a_layernorm.weight", "norms"),
        (f"{LAYER}.post_attention_layernorm.weight", "norms"),
        (f"{LAYER}.mlp.gate_proj.weight", "mlp"),
        (f"{LAYER}.mlp.gate.weight", "routers"),
        (f"{LAYER}.mlp.gate.e_score_correction_bias", "routers"),
        (f"{LAYER}.mlp.shared_expert_gate.weight", "routers"),
        (f"{LAYER}.mlp.shared_experts.up_proj.weight", "mlp"),
        (f"{LAYER}.mlp.experts.17.down_proj.weight", "experts"),
        (f"{LAYER}.block_sparse_moe.gate.weight", "routers"),
        (f"{LAYER}.block_sparse_moe.experts.0.w1.weight", "experts"),
        (f"{LAYER}.mlp.router.bias", "routers"),
        (f"{LAYER}.linear_attn.conv1d.weight", "attention"),
        (f"{LAYER}.mixer.in_proj.weight", "states"),
        (f"{LAYER}.mixer.q_proj.weight", "attention"),
        (f"{LAYER}.mixer.up_proj.weight", "mlp"),
        (f"{LAYER}.mixer.experts.0.up_proj.weight", "experts"),
        (f"{LAYER}.mamba.out_proj.weight", "states"),
        ("model.norm.weight", "norms"),
        ("lm_head.weight", "lm_head"),
        ("language_model.lm_head.weight", "lm_head"),
        ("embed_out.weight", "lm_head"),
        ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", "vision"),
        ("visual.blocks.0.attn.qkv.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("model.layers.61.eh_proj.weight", "mtp"),
        ("model.layers.61.mlp.experts.0.up_proj.weight", "mtp"),
        ("mtp.layers.0.mlp.up_proj.weight", "mtp"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert module_kind(name, 2, layers=61) == kind


def test_stacked_experts_without_the_word() -> None:
    assert module_kind(f"{LAYER}.mlp.input_linear.weight", 3, 61) == "experts"  # JetMoe
    assert module_kind(f"{LAYER}.block_sparse_moe.input_linear.weight", 3, 61) == "experts"
    assert module_kind(f"{LAYER}.block_sparse_moe.input_linear.weight", 2, 61) == "mlp"

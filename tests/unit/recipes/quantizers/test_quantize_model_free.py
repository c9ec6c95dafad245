from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prepare.errors import StageError
from recipes.checkpoints.module_kind import is_quantizable
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.module_lists import is_listed
from recipes.quantizers.model_free_worker import check_supported, kept_layers

IGNORE = ["lm_head", "re:.*mlp.gate$"]
SOURCE = Path("checkpoint")


def tensor(*shape: int, dtype: str = "BF16") -> TensorEntry:
    return TensorEntry(dtype, shape, 0, 0)


LINEAR = {"model.layers.0.mlp.up_proj.weight": tensor(8, 4)}


def check(tensors: dict[str, TensorEntry], config: dict[str, Any] | None = None) -> None:
    chosen = {name: entry for name, entry in tensors.items() if is_quantizable(name, entry, IGNORE)}
    check_supported(chosen, config or {}, IGNORE, SOURCE)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj.weight",
        "model.layers.0.block_sparse_moe.experts.w1",
        "model.layers.0.block_sparse_moe.input_linear.weight",
        "model.layers.0.mlp.output_linear.weight",
    ],
)
def test_stacked_experts_are_kept_and_the_engine_hears_of_it(name: str) -> None:
    """vLLM 0.32 asks for the scheme of `EXPERTS.0.gate_proj` and the like, in its own words."""
    tensors = LINEAR | {name: tensor(4, 8, 4)}
    check(tensors)
    kept = kept_layers(tensors, IGNORE)
    assert is_listed("model.layers.0.mlp.experts.0.gate_proj", kept)
    assert is_listed("language_model.layers.3.feed_forward.experts.routed_experts.0.w1", kept)
    for module in ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.shared_experts.up_proj"):
        assert not is_listed(module, kept)


def test_quantized_weights_are_refused() -> None:
    with pytest.raises(StageError, match=r"up_proj\.weight' .* F8_E4M3"):
        check({"model.layers.0.mlp.up_proj.weight": tensor(8, 4, dtype="F8_E4M3")})


def test_transposed_layers_are_refused() -> None:
    with pytest.raises(StageError, match="'gpt2'"):
        check({"h.0.attn.c_attn.weight": tensor(8, 24)}, {"model_type": "gpt2"})


def test_a_tied_head_has_to_be_ignored() -> None:
    with pytest.raises(StageError) as caught:
        check_supported(LINEAR, {"tie_word_embeddings": True}, [], SOURCE)
    assert caught.value.where == f"{SOURCE / 'config.json'}, key tie_word_embeddings"


def test_the_engine_hears_of_kept_layers_only() -> None:
    tensors = LINEAR | {
        "model.embed_tokens.weight": tensor(8, 4),
        "model.norm.weight": tensor(4),
        "model.layers.0.mlp.gate.weight": tensor(3, 4),
        "lm_head.weight": tensor(8, 4),
    }
    assert kept_layers(tensors, IGNORE) == ["model.layers.0.mlp.gate", "lm_head"]

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepare.errors import StageError
from recipes.quantizers.transformers4_compat import (
    config_of_4,
    tokenizer_config_of_4,
    transformers4_view,
)

NEW = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}
OLD = {"model_type": "llama", "torch_dtype": "bfloat16", "rope_theta": 100000.0}
NEW_TOKENIZER = {"tokenizer_class": "TokenizersBackend", "eos_token": "<|im_end|>"}
OLD_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}


class TestConfig:
    @pytest.mark.parametrize(
        ("rope", "said"),
        [
            (
                {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0},
                {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            ),
            (
                {"type": "linear", "rope_theta": 1e4, "factor": 2.0},
                {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            ),
            (
                {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
            ),
            (
                {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0],
                    "long_factor": [2.0],
                    "original_max_position_embeddings": 4096,
                },
                {
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 4096,
                    "rope_scaling": {
                        "type": "longrope",
                        "short_factor": [1.0],
                        "long_factor": [2.0],
                    },
                },
            ),
        ],
    )
    def test_kinds_of_rotary_embedding(self, rope: dict[str, Any], said: dict[str, Any]) -> None:
        assert config_of_4({"rope_parameters": rope}) == said

    def test_gpt_neox_has_names_of_its_own(self) -> None:
        rope = {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5}
        told = config_of_4({"model_type": "gpt_neox", "rope_parameters": rope})
        assert told == {"model_type": "gpt_neox", "rotary_emb_base": 20000.0, "rotary_pct": 0.5}

    def test_one_a_kind_of_layer_cannot_be_said(self) -> None:
        rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
        with pytest.raises(StageError) as caught:
            config_of_4({"rope_parameters": rope})
        assert "rope_parameters" in caught.value.where
        assert "awq-w4a16" in caught.value.hint


class TestTokenizerConfig:
    def test_further_special_tokens(self) -> None:
        told = tokenizer_config_of_4({"extra_special_tokens": ["<a>", "<b>"]})
        assert told == {"additional_special_tokens": ["<a>", "<b>"]}
        named = {"extra_special_tokens": {"image_token": "<image>"}}
        assert tokenizer_config_of_4(named) == named


class TestView:
    def checkpoint(self, folder: Path, config: Any, tokenizer: Any) -> Path:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        (folder / "model.safetensors").write_bytes(b"weights")
        return folder

    def test_of_version_5(self, tmp_path: Path) -> None:
        source = self.checkpoint(tmp_path / "source", NEW, NEW_TOKENIZER)
        view = tmp_path / "view"
        view.mkdir()
        assert transformers4_view(source, view) == view
        assert json.loads((view / "config.json").read_text()) == OLD
        assert json.loads((view / "tokenizer_config.json").read_text()) == OLD_TOKENIZER
        assert (view / "model.safetensors").is_symlink()
        assert (view / "model.safetensors").read_bytes() == b"weights"
        assert json.loads((source / "config.json").read_text()) == NEW

    def test_of_version_4_is_the_checkpoint_itself(self, tmp_path: Path) -> None:
        source = self.checkpoint(tmp_path / "source", OLD, OLD_TOKENIZER)
        view = tmp_path / "view"
        view.mkdir()
        assert transformers4_view(source, view) == source
        assert list(view.iterdir()) == []

"""Cutting a checkpoint to two layers: published configs, shards, and every byte that is kept."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
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
)
from small_checkpoint import write_files

from pipeline.checkpoint.folder import inspect_folder
from pipeline.checkpoint.safetensors_header import read_header
from pipeline.checkpoint.weight_files import INDEX
from pipeline.core.errors import CheckpointError
from pipeline.core.file_digests import FileDigests
from pipeline.inspection.truncated_checkpoint import (
    choose_layers,
    cut_checkpoint,
    cut_config,
    retained_tensors,
)

GEMMA_3_27B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 62,
    "layer_types": [
        "full_attention" if (n + 1) % 6 == 0 else "sliding_attention" for n in range(62)
    ],
    "eos_token_id": [1, 106],
}
QWEN_2_MOE: dict[str, Any] = {"num_hidden_layers": 24, "decoder_sparse_step": 2}
QWEN_3_MOE: dict[str, Any] = {
    "num_hidden_layers": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0, 5],
}
# transformers 5 writes one kind a layer where DeepSeek's own config has a number.
GLM_4_MOE: dict[str, Any] = {
    "num_hidden_layers": 46,
    "first_k_dense_replace": 1,
    "mlp_layer_types": ["dense", *["sparse"] * 45],
    "num_nextn_predict_layers": 1,
}
QWEN_3_NEXT: dict[str, Any] = {"num_hidden_layers": 48, "full_attention_interval": 4}
SMALL = {"hidden_size": 8, "intermediate_size": 16, "vocab_size": 12, "max_position_embeddings": 64}


def cut(config: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    layers = choose_layers(config, "config.json")
    return layers, cut_config(config, layers)


class TestConfig:
    def test_of_equal_layers_the_first_two(self) -> None:
        layers, config = cut(LLAMA_3_8B)
        assert layers == (0, 1)
        assert config == LLAMA_3_8B | {"num_hidden_layers": 2}

    def test_the_source_is_not_changed(self) -> None:
        before = json.dumps(GEMMA_3_27B)
        cut(GEMMA_3_27B)
        assert json.dumps(GEMMA_3_27B) == before

    def test_one_layer_of_each_kind(self) -> None:
        layers, config = cut(GEMMA_3_27B)
        assert layers == (0, 5)
        assert config["layer_types"] == ["sliding_attention", "full_attention"]
        assert config["eos_token_id"] == [1, 106]

    def test_a_dense_layer_and_one_of_experts(self) -> None:
        layers, config = cut(DEEPSEEK_V3 | {"first_k_dense_replace": 3})
        assert layers == (0, 3)
        assert config["first_k_dense_replace"] == 1
        assert config["num_nextn_predict_layers"] == 0
        layers, config = cut(GLM_4_MOE)
        assert layers == (0, 1)
        assert config["mlp_layer_types"] == ["dense", "sparse"]
        layers, config = cut(QWEN_3_MOE)
        assert layers == (0, 1)
        assert config["mlp_only_layers"] == [0]

    def test_layers_that_differ_by_a_period_stay_the_first_two(self) -> None:
        assert cut(QWEN_2_MOE)[0] == (0, 1)
        assert cut(QWEN_3_NEXT)[0] == (0, 1)

    def test_a_list_of_attentions_overrules_their_period(self) -> None:
        kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
        layers, config = cut(QWEN_3_NEXT | {"layer_types": kinds * 12})
        assert layers == (0, 3)
        assert config["layer_types"] == ["linear_attention", "full_attention"]

    def test_a_pattern_of_letters(self) -> None:
        layers, config = cut({"num_hidden_layers": 6, "hybrid_override_pattern": "MM-M*-"})
        assert layers == (0, 2)
        assert config["hybrid_override_pattern"] == "M-"

    def test_a_multimodal_models_decoder_is_one_level_down(self) -> None:
        config = {"text_config": GEMMA_3_27B, "vision_config": {"num_hidden_layers": 27}}
        layers, found = cut(config)
        assert layers == (0, 5)
        assert found["text_config"]["num_hidden_layers"] == 2
        assert found["text_config"]["layer_types"] == ["sliding_attention", "full_attention"]
        assert found["vision_config"] == {"num_hidden_layers": 27}
        assert "num_hidden_layers" not in found

    def test_older_names_and_shared_keys(self) -> None:
        assert cut({"n_layer": 12})[1] == {"n_layer": 2}
        found = cut({"num_hidden_layers": 35, "num_kv_shared_layers": 15})[1]
        assert found == {"num_hidden_layers": 2, "num_kv_shared_layers": 0}

    def test_a_single_layer(self) -> None:
        assert cut({"num_hidden_layers": 1}) == ((0,), {"num_hidden_layers": 1})

    def test_layers_unknown(self) -> None:
        with pytest.raises(CheckpointError) as caught:
            choose_layers({}, "config.json")
        assert caught.value.where == "config.json, key num_hidden_layers"

    @given(
        count=st.integers(1, 40),
        dense_ones=st.integers(0, 40),
        kinds=st.lists(st.sampled_from("abc"), min_size=40, max_size=40),
    )
    def test_what_is_cut_says_of_its_layers_what_was_said_of_them(
        self, count: int, dense_ones: int, kinds: list[str]
    ) -> None:
        config = {
            "num_hidden_layers": count,
            "first_k_dense_replace": dense_ones,
            "layer_types": kinds[:count],
        }
        layers, found = cut(config)
        assert found["num_hidden_layers"] == len(layers) == min(2, count)
        assert found["layer_types"] == [kinds[layer] for layer in layers]
        for new, old in enumerate(layers):
            assert (new < found["first_k_dense_replace"]) is (old < dense_ones)
        if len({(kind, n < dense_ones) for n, kind in enumerate(kinds[:count])}) > 1:
            first, second = ((kinds[n], n < dense_ones) for n in layers)
            assert first != second


class TestNames:
    def test_of_deepseek(self) -> None:
        config = DEEPSEEK_V3 | {"first_k_dense_replace": 3, "n_routed_experts": 2}
        names = list(deepseek(config))
        kept = retained_tensors(names, (0, 3), 61)
        assert set(kept.values()) >= {
            "model.embed_tokens.weight",
            "model.norm.weight",
            "lm_head.weight",
            "model.layers.0.mlp.down_proj.weight",
            "model.layers.1.mlp.experts.1.down_proj.weight",
            "model.layers.1.mlp.gate.weight",
        }
        assert kept["model.layers.3.mlp.gate.weight"] == "model.layers.1.mlp.gate.weight"
        assert not any("layers.2." in new or "layers.61." in old for old, new in kept.items())

    @pytest.mark.parametrize(
        ("name", "kept"),
        [
            ("transformer.h.1.attn.c_attn.weight", True),
            ("transformer.h.2.attn.c_attn.weight", False),
            ("gpt_neox.layers.1.mlp.dense_h_to_4h.weight", True),
            ("backbone.layers.7.mixer.in_proj.weight", False),
            ("transformer.blocks.9.ffn.up_proj.weight", False),
            ("transformer.wte.weight", True),
            ("vision_tower.encoder.layers.20.mlp.fc1.weight", True),
            ("mtp.layers.0.mlp.up_proj.weight", False),
            ("model.layers.30.eh_proj.weight", False),
        ],
    )
    def test_of_other_families(self, name: str, kept: bool) -> None:
        assert (name in retained_tensors([name], (0, 1), 30)) is kept


def content(shapes: Shapes, seed: int = 1) -> dict[str, bytes]:
    """Random bf16 bytes for each tensor."""
    dice = random.Random(seed)
    return {name: dice.randbytes(2 * elements(shape)) for name, shape in shapes.items()}


def elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def file_of(shapes: Shapes, tensors: dict[str, bytes]) -> bytes:
    header, position = {}, 0
    for name, data in tensors.items():
        place = [position, position + len(data)]
        header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": place}
        position += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def sharded(config: dict[str, Any], shapes: Shapes, shards: int) -> dict[str, bytes]:
    """A checkpoint whose tensors are dealt out to the shards in turn."""
    tensors = content(shapes)
    files, weight_map = {}, {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {t: data for n, (t, data) in enumerate(tensors.items()) if n % shards == shard}
        files[name] = file_of(shapes, part)
        weight_map |= dict.fromkeys(part, name)
    return files | {
        "config.json": json.dumps(config).encode(),
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        "tokenizer.json": b"{}",
        "modeling_mine.py": b"# code",
        "README.md": b"not needed",
    }


def read(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes."""
    found = {}
    for file in folder.glob("*.safetensors"):
        header, raw = read_header(file), file.read_bytes()
        for name, tensor in header.tensors.items():
            start = header.data_start
            found[name] = raw[start + tensor.begin : start + tensor.end]
    return found


class TestFiles:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        config = LLAMA_3_8B | SMALL | {"num_attention_heads": 2, "num_key_value_heads": 1}
        config |= {"num_hidden_layers": 5}
        return write_files(tmp_path / "source", sharded(config, dense(config), 3))

    def test_every_kept_byte_is_the_sources(self, source: Path, tmp_path: Path) -> None:
        found = cut_checkpoint(source, tmp_path / "cut")
        before, after = read(source), read(tmp_path / "cut")
        assert after == {n: b for n, b in before.items() if "layers" not in n or n[13] in "01"}
        assert (found.layers, found.tensors) == ((0, 1), len(after))
        weights = tmp_path / "cut" / "model.safetensors"
        assert found.weights_bytes == weights.stat().st_size
        assert read_header(weights).data_start % 8 == 0

    def test_experts_of_a_later_layer(self, tmp_path: Path) -> None:
        config = MIXTRAL_8X22B | SMALL | {"num_hidden_layers": 4, "num_local_experts": 3}
        config |= {"num_attention_heads": 2, "num_key_value_heads": 1}
        config |= {"layer_types": ["a", "a", "b", "b"]}
        write_files(tmp_path / "source", sharded(config, mixtral(config), 2))
        cut_checkpoint(tmp_path / "source", tmp_path / "cut")
        before, after = read(tmp_path / "source"), read(tmp_path / "cut")
        moved = "block_sparse_moe.experts.2.w2.weight"
        assert after[f"model.layers.1.{moved}"] == before[f"model.layers.2.{moved}"]
        assert after[f"model.layers.0.{moved}"] == before[f"model.layers.0.{moved}"]

    def test_it_is_a_whole_checkpoint(self, source: Path, tmp_path: Path) -> None:
        cut_checkpoint(source, tmp_path / "cut")
        names = {file.name for file in (tmp_path / "cut").iterdir()}
        assert names == {"config.json", "model.safetensors", "tokenizer.json", "modeling_mine.py"}
        digests = FileDigests(tmp_path / "digests.json")
        checkpoint = inspect_folder(
            tmp_path / "cut", ref="cut", kind="folder", revision=None, digests=digests
        )
        assert (
            checkpoint.parameters == sum(len(data) for data in read(tmp_path / "cut").values()) / 2
        )

    def test_layers_that_no_name_tells(self, tmp_path: Path) -> None:
        config = SMALL | {"num_hidden_layers": 2}
        shapes: Shapes = {"stages.a.weight": (2, 2)}
        write_files(tmp_path / "source", sharded(config, shapes, 1))
        with pytest.raises(CheckpointError) as caught:
            cut_checkpoint(tmp_path / "source", tmp_path / "cut")
        assert "stages.a.weight" in caught.value.message
        assert "--no-dry-run" in caught.value.hint
        assert not (tmp_path / "cut").exists()

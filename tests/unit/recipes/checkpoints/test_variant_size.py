"""Estimated sizes against what llm-compressor really wrote for SmolLM2-135M (seen 2026-11)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from recipes.catalog import load_recipe
from recipes.checkpoints.checkpoint import read_folder
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.variant_size import variant_weights
from recipes.quantization import Quantization

MIXED_BYTES = 128_100_000
MIXED = load_recipe("nvfp4").quantization.model_copy(
    update={"other_schemes": {"FP8_DYNAMIC": [r"re:.*attn\..*"]}}
)
LAYERS, HIDDEN, INNER, KEY_VALUE, VOCABULARY = 30, 576, 1536, 192, 49152


def estimated_bytes(folder: Path, quantization: Quantization) -> int:
    source = read_folder(folder)
    return variant_weights(source.tensors, quantization, source.config).bytes


def smollm2_headers(folder: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (KEY_VALUE, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (KEY_VALUE, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    header, begin = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + begin)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))


@pytest.mark.parametrize(
    ("recipe", "real_file_bytes"),
    [
        ("fp8-dynamic", 163_227_736),
        ("fp8-static", 162_945_648),
        ("int8-w8a8", 163_226_688),
        ("awq-w4a16", 114_029_456),
        ("awq-w4a16-sym", 113_175_416),
        ("gptq-w4a16", 113_175_416),
        ("nvfp4", 116_515_496),
        (MIXED, MIXED_BYTES),
    ],
)
def test_estimates_are_within_one_per_cent(
    tmp_path: Path, recipe: str | Quantization, real_file_bytes: int
) -> None:
    smollm2_headers(tmp_path)
    quantization = load_recipe(recipe).quantization if isinstance(recipe, str) else recipe
    estimate = estimated_bytes(tmp_path, quantization)
    assert estimate == pytest.approx(real_file_bytes, rel=0.01)


def test_each_module_has_the_format_of_its_group() -> None:
    tensors = {
        f"model.layers.0.{name}.weight": TensorEntry("BF16", (64, 64), 0, 2 * 64 * 64)
        for name in ("self_attn.q_proj", "mlp.up_proj")
    }
    weights = variant_weights(tensors, MIXED, {})
    attention, mlp = (each.form for each in weights.tensors)
    assert attention is not None
    assert mlp is not None
    assert (attention.bits, mlp.bits) == (8, 4)
    assert [each.bytes for each in weights.tensors] == [
        form.matrix_bytes(64, 64) for form in (attention, mlp)
    ]
    assert weights.label == "fp8, a scale a row and fp4, groups of 16"


def test_groups_need_not_divide_modules_in_another_format() -> None:
    tensors = {
        f"model.layers.0.mlp.{name}.weight": TensorEntry("BF16", (64, columns), 0, 128 * columns)
        for name, columns in (("up_proj", 64), ("down_proj", 72))
    }
    plain = load_recipe("awq-w4a16").quantization
    mixed = plain.model_copy(update={"other_schemes": {"W8A16": ["*.down_proj"]}})
    assert variant_weights(tensors, plain, {}).undivided == (72,)
    weights = variant_weights(tensors, mixed, {})
    assert weights.undivided == ()
    assert [each.form.group for each in weights.tensors if each.form] == [64, None]
    assert weights.tensors[1].bytes == 64 * 72 + 2 * 64 + 16


@pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight"])
def test_a_tied_head_is_not_counted_whatever_is_before_its_name(head: str) -> None:
    tensors = {
        "model.embed_tokens.weight": TensorEntry("BF16", (8, 4), 0, 64),
        head: TensorEntry("BF16", (8, 4), 64, 128),
    }
    quantization = load_recipe("fp8-dynamic").quantization
    assert variant_weights(tensors, quantization, {"tie_word_embeddings": True}).bytes == 64
    assert variant_weights(tensors, quantization, {}).bytes == 128

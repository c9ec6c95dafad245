"""Parameters and bytes against what is published of well-known models."""

from __future__ import annotations

import pytest
from published_models import (
    DEEPSEEK_V3,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_3_405B,
    MIXTRAL_8X22B,
    QWEN_25_72B,
    dense,
    inspected,
    mixtral,
    source,
)

from pipeline.core.errors import CheckpointError
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.inspection import SHOWN_FORMATS, CheckpointInspection, inspect
from pipeline.inspection.module_kind import EXPERT_COUNTS
from recipes import catalog


@pytest.mark.parametrize(
    ("model", "parameters", "gigabytes"),
    [
        (inspected(LLAMA_3_8B), 8_030_261_248, 16),
        (inspected(LLAMA_3_70B), 70_553_706_496, 140),
        (inspected(LLAMA_3_405B), 405_853_388_800, 810),
        (inspected(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)), 140_620_634_112, 281),
        (inspected(QWEN_25_72B, dense(QWEN_25_72B, bias=True)), 72_706_203_648, 145),
    ],
    ids=["llama-3-8b", "llama-3-70b", "llama-3.1-405b", "mixtral-8x22b", "qwen2.5-72b"],
)
def test_published_sizes_in_16_bits(
    model: CheckpointInspection, parameters: int, gigabytes: float
) -> None:
    assert model.parameters_total == parameters
    assert model.source.weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert model.bytes_at(SHOWN_FORMATS[0]) == model.source.weights_bytes


def test_a_72b_at_4_bits_is_near_40_gb() -> None:
    model = inspected(QWEN_25_72B, dense(QWEN_25_72B, bias=True))
    awq = model.variant(catalog.load_recipe("awq-w4a16").quantization)
    assert awq.bytes / 1e9 == pytest.approx(41.5, rel=0.01)  # the published AWQ files: 41.6
    assert [form.group for form in awq.forms] == [128]
    of_4_bits = [p for p in SHOWN_FORMATS if p.bits == 4]
    assert [model.bytes_at(p) / 1e9 for p in of_4_bits] == pytest.approx([41.5, 41.2], rel=0.01)


def test_fp8_of_a_70b_is_half_but_for_the_ends() -> None:
    model = inspected(LLAMA_3_70B)
    fp8 = model.variant(catalog.load_recipe("fp8-dynamic").quantization)
    assert fp8.bytes / 1e9 == pytest.approx(72.7, rel=0.005)
    left = model.count_unquantized(fp8)
    assert set(left) == {"embeddings", "norms", "lm_head"}
    assert left["embeddings"] == left["lm_head"] == 128256 * 8192
    quantized = model.count_quantized(fp8)
    assert set(quantized) == {"attention", "mlp"}
    assert sum(left.values()) + sum(quantized.values()) == model.parameters_total


def test_parameters_by_kind_of_a_mixture() -> None:
    parameters = inspected(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)).parameters
    assert parameters["experts"] == 56 * 8 * 3 * 6144 * 16384
    assert parameters["routers"] == 56 * 8 * 6144
    assert parameters["attention"] == 56 * (2 * 6144**2 + 2 * 6144 * 1024)
    assert "mlp" not in parameters


def test_a_head_stored_twice_is_saved_once() -> None:
    tied = LLAMA_3_8B | {"tie_word_embeddings": True}
    baseline = catalog.load_recipe("baseline").quantization
    saved = inspected(tied).source.weights_bytes - inspected(tied).variant(baseline).bytes
    assert saved == 2 * 128256 * 4096


def test_stacked_experts_are_left_and_shown() -> None:
    shapes = {
        "model.embed_tokens.weight": (64, 32),
        "model.layers.0.mlp.experts.gate_up_proj": (4, 32, 64),
        "model.layers.0.mlp.experts.down_proj": (4, 32, 32),
        "model.layers.0.mlp.router.weight": (4, 32),
    }
    config = LLAMA_3_8B | {"num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 64}
    model = inspected(config, shapes)
    assert model.parameters["experts"] == 4 * 32 * (64 + 32)
    fp8 = model.variant(catalog.load_recipe("fp8-dynamic").quantization)
    assert model.count_unquantized(fp8)["experts"] == model.parameters["experts"]
    # At a precision they are counted as what they are: 4 bits of each weight, and scales.
    assert model.bytes_at(SHOWN_FORMATS[1]) < model.source.weights_bytes


def test_what_no_group_divides_is_said() -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 1}
    shapes = {"model.layers.0.mlp.up_proj.weight": (64, 72)}
    awq = inspected(config, shapes).variant(catalog.load_recipe("awq-w4a16").quantization)
    assert awq.undivided == (72,)


def test_the_words_for_programs() -> None:
    words = inspected(LLAMA_3_8B).to_dict()
    assert words["parameters"] == 8_030_261_248
    assert words["kv_cache"]["bytes_per_token_16_bit"] == 131072
    assert words["bytes_at"]["16-bit"] == words["weights_bytes"]
    assert words["quantized"] is None


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_without_what_memory_depends_on(missing: str) -> None:
    config = {key: value for key, value in DEEPSEEK_V3.items() if key != missing}
    with pytest.raises(CheckpointError) as caught:
        inspected(config, {"a.weight": (2, 2)})
    assert missing in str(caught.value)


@pytest.mark.parametrize("key", EXPERT_COUNTS)
def test_the_keys_of_experts(key: str) -> None:
    model = inspected(LLAMA_3_8B | {key: 64})
    assert (model.shape.experts, model.shape.experts_per_token) == (64, 1)


def test_no_weights_at_all() -> None:
    with pytest.raises(CheckpointError, match="empty"):
        inspect(HeaderSource("x", "x/config.json", dict(LLAMA_3_8B), {}, 0))


def test_float32_is_counted_as_stored() -> None:
    model = inspect(source(LLAMA_3_8B, dense(LLAMA_3_8B), "F32"))
    assert model.source.weights_bytes == 4 * model.parameters_total
    assert model.bytes_at(SHOWN_FORMATS[0]) == 2 * model.parameters_total

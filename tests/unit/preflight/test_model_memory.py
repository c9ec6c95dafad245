"""What fits on which GPUs: published models, and configs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_3_405B,
    MIXTRAL_8X22B,
    QWEN_3_235B,
    deepseek,
    dense,
    gpt_oss,
    inspected,
    mixtral,
    qwen3_moe,
)

from pipeline.preflight.host_memory import serving_bytes
from pipeline.preflight.memory import Fit, Gpus, Model, divisors, variants_of
from prepare.errors import CheckpointError
from recipes import catalog
from recipes.checkpoints.config_alone import read_config_alone
from recipes.checkpoints.variant_size import VariantWeights

RECIPES = [catalog.load_recipe(name) for name in ("baseline", "fp8-dynamic", "awq-w4a16")]
BASELINE, FP8, AWQ = RECIPES
MODELS = {
    "8b": inspected(LLAMA_3_8B),
    "70b": inspected(LLAMA_3_70B),
    "405b": inspected(LLAMA_3_405B),
    "mixtral": inspected(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)),
    "qwen-235b": inspected(QWEN_3_235B, qwen3_moe(QWEN_3_235B)),
    "gpt-oss": inspected(GPT_OSS_120B, gpt_oss(GPT_OSS_120B)),
    "deepseek": inspected(DEEPSEEK_V3, deepseek(DEEPSEEK_V3)),
}


def weights_of(model: Model) -> dict[str, VariantWeights]:
    return variants_of(model.source, RECIPES, {})


def fits(model: Model, gpu: str, gpus: int = 1, **more: Any) -> dict[tuple[str, int], Fit]:
    site = Gpus.of(model, catalog.load_gpu(gpu), gpus, None, **more)
    found = site.fits(weights_of(model), divisors(gpus))
    return {(fit.variant, fit.gpus): fit for fit in found}


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "variant", "answer"),
    [
        ("8b", "h100", 1, "baseline", "fits"),
        ("8b", "l4", 1, "baseline", "fits"),
        ("8b", "l4", 1, "fp8-dynamic", "fits"),
        ("70b", "h100", 1, "baseline", "does not fit"),
        ("70b", "h100", 1, "fp8-dynamic", "the engine tells"),
        ("70b", "h100", 1, "awq-w4a16", "fits"),
        ("70b", "h100", 2, "baseline", "the engine tells"),
        ("70b", "h100", 4, "baseline", "fits"),
        ("70b", "h200", 1, "fp8-dynamic", "fits"),
        ("405b", "h200", 8, "baseline", "fits"),
        ("405b", "h100", 8, "baseline", "does not fit"),
        ("405b", "h100", 8, "fp8-dynamic", "fits"),
        ("mixtral", "h100", 4, "fp8-dynamic", "fits"),
        ("mixtral", "h100", 4, "baseline", "the engine tells"),
        ("qwen-235b", "h100", 8, "baseline", "fits"),
        ("gpt-oss", "h100", 1, "baseline", "the engine tells"),
        ("gpt-oss", "l4", 4, "baseline", "the engine tells"),
        ("deepseek", "h200", 8, "baseline", "does not fit"),
    ],
)
def test_answers(model: str, gpu: str, gpus: int, variant: str, answer: str) -> None:
    """The answers of the exact plan that vLLM's rules give, or the middle one."""
    assert fits(MODELS[model], gpu, gpus)[variant, gpus].answer == answer


def test_what_a_gpu_has_is_shared_out() -> None:
    found = fits(MODELS["8b"], "h100")["baseline", 1]
    usable = int(79.10 * 2**30 * 0.92)
    assert found.weights_bytes + found.reserve_bytes + found.cache_bytes == pytest.approx(usable)
    assert found.weights_bytes == 2 * 8_030_261_248
    assert found.tokens == pytest.approx(found.cache_bytes // 131_072, rel=0.01)


def test_variants_with_another_kv_cache() -> None:
    formats = {"fp8-dynamic": "auto", "awq-w4a16": "turboquant_4bit_nc"}
    found = fits(MODELS["8b"], "h100", kv_formats=formats)
    usual = fits(MODELS["8b"], "h100")
    tokens = {name: fit.tokens for (name, _), fit in found.items()}
    assert tokens["baseline"] == usual["baseline", 1].tokens
    by_profile = usual["fp8-dynamic", 1].tokens or 0
    assert tokens["fp8-dynamic"] == pytest.approx(by_profile / 2, rel=0.01)
    unknown = found["awq-w4a16", 1]  # no figure, rather than one of another format
    assert (unknown.tokens, unknown.answer) == (None, "the engine tells")
    assert "turboquant_4bit_nc" in unknown.reason


def test_remedies_of_a_misfit() -> None:
    whole = fits(MODELS["405b"], "h100", 8)["baseline", 8]
    assert "--gpus-a-copy 16" in whole.hint
    long = fits(inspected(LLAMA_3_8B | {"max_position_embeddings": 10**6}), "h100")["baseline", 1]
    assert long.answer == "does not fit"
    tokens = int(long.hint.split("at most ")[1].split(";")[0])
    assert fits(MODELS["8b"] if tokens < 8192 else model_of(tokens), "h100")["baseline", 1].answer


def model_of(tokens: int) -> Model:
    return inspected(LLAMA_3_8B | {"max_position_embeddings": tokens})


def test_unknown_layers_are_left_to_the_engine() -> None:
    config = LLAMA_3_8B | {"layer_types": ["full_attention"] * 31 + ["retention"]}
    found = fits(inspected(config, dense(LLAMA_3_8B)), "h100")["baseline", 1]
    assert found.answer == "the engine tells"
    assert found.tokens is None
    large = inspected(config | {"intermediate_size": 200_000}, dense(LLAMA_3_405B))
    assert fits(large, "h100")["baseline", 1].answer == "does not fit"


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_without_what_memory_depends_on(missing: str) -> None:
    config = {key: value for key, value in DEEPSEEK_V3.items() if key != missing}
    with pytest.raises(CheckpointError, match=missing):
        inspected(config, {"a.weight": (2, 2)})


class TestHostMemory:
    GIB = 2**30
    PARAMETERS = 8_030_261_248
    EMBEDDED = 2 * 128256 * 4096  # embedding and head
    NORMS = 65 * 4096

    @pytest.mark.parametrize(
        ("features", "kept", "times"),
        [(("avx512_bf16", "avx512f", "avx2"), 2, 4), (("avx2",), 4, 4)],
    )
    def test_serving_on_a_cpu(self, features: tuple[str, ...], kept: int, times: int) -> None:
        model, profile = MODELS["8b"], catalog.load_profile("cpu").fit_to(features)
        weights = weights_of(model)
        around = self.EMBEDDED + self.NORMS
        baseline = serving_bytes(model, BASELINE, weights["baseline"], profile)
        assert baseline == kept * self.PARAMETERS + 3 * self.GIB
        fp8, quantized = weights[FP8.name], weights[FP8.name].bytes - 2 * around
        served = times * quantized + kept * around + 3 * self.GIB
        assert serving_bytes(model, FP8, fp8, profile) == served
        assert serving_bytes(model, FP8, fp8, catalog.load_profile("h100")) == 0


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_3_8B, 8_030_261_248),
        (LLAMA_3_405B, 405_853_388_800),
        (MIXTRAL_8X22B, 140_620_634_112),
        (QWEN_3_235B, 235_000_000_000),
        (DEEPSEEK_V3 | {"first_k_dense_replace": 3, "n_shared_experts": 1}, 671_000_000_000),
    ],
)
def test_a_config_alone_has_the_published_size(
    tmp_path: Path, config: dict[str, Any], parameters: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = Model.of(read_config_alone(tmp_path, "x"))
    assert model.parameters() == pytest.approx(parameters, rel=0.01)

"""The engine SGLang: its options, its command, and what it is refused for."""

from __future__ import annotations

import pytest

from pipeline.core.errors import UsageError
from pipeline.plan.suitability import check_processor, check_servable
from pipeline.serving.serving_arguments import ServingArguments
from recipes.catalog import load_profile, load_recipe
from recipes.engine_arguments import EngineArgumentError, check_arguments
from recipes.engines import LaunchSpec, find_engine
from recipes.engines.engine import LENGTH
from recipes.engines.sglang import PINNED, TUNES

ENGINE = find_engine("sglang")
PROFILE = load_profile("cpu-sglang")


def test_every_tuning_option_is_one_of_the_parser() -> None:
    _, known = ENGINE.known_arguments("cpu")
    assert set(known) >= TUNES | PINNED.keys()
    assert not {"model-path", "host", "api-key", "lora-paths", "tokenizer-path", "config"} & TUNES


def test_the_command_has_the_pinned_options_and_a_socket_or_a_port() -> None:
    served = ServingArguments.of(PROFILE, is_baseline=True)
    launch = LaunchSpec("/weights", served.for_engine(), name="model", host="h", socket="/s/server")
    words = ENGINE.command("python", launch)
    assert words[words.index("--socket") + 1] == "/s/server"
    assert words[words.index("--context-length") + 1] == str(PROFILE.engine_arguments[LENGTH])
    assert words[words.index("--attention-backend") + 1] == "torch_native"
    assert not {"--port", "--host", f"--{LENGTH}", "--trust-remote-code"} & set(words)
    on_port = LaunchSpec("/weights", {}, True, name="model", host="h", port=8000)
    words = ENGINE.command("python", on_port)
    assert words[words.index("--port") + 1] == "8000"
    assert "--trust-remote-code" in words
    assert "--socket" not in words


@pytest.mark.parametrize(
    "name", ["model-path", "host", "load-format", "api-key", "custom-sigquit-handler", "tp-size"]
)
def test_options_that_do_not_tune_are_refused(name: str) -> None:
    with pytest.raises(EngineArgumentError):
        check_arguments("cpu", {name: "1"}, "sglang")


@pytest.mark.parametrize("recipe", ["fp8-dynamic", "awq-w4a16", "int8-w8a8", "nvfp4"])
def test_quantized_weights_are_refused_by_name(recipe: str) -> None:
    with pytest.raises(UsageError, match=recipe):
        check_servable(load_recipe(recipe), "cpu", "sglang")
    check_servable(load_recipe("baseline"), "cpu", "sglang")


def test_adopted_quantized_weights_are_refused() -> None:
    assert "fp8" in ENGINE.cannot_load({"quant_method": "fp8"}, "cpu")


def test_a_cache_in_fp8_is_refused_at_once() -> None:
    with pytest.raises(UsageError):
        check_processor(PROFILE.model_copy(update={"kv_cache_dtype": "fp8"}), ["avx2"])
    check_processor(PROFILE, ["avx2"])

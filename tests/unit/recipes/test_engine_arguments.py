"""What a profile or a tag may say to the engine: whole names that it knows, and no code."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from recipes.engine_arguments import (
    EngineArgumentError,
    check_arguments,
    check_variables,
)
from recipes.engines import DEFAULT, find_engine
from recipes.schema import ServingProfile


def profile(**keys: Any) -> ServingProfile:
    return ServingProfile.model_validate(
        {"name": "p", "summary": "s", "accelerator": "cpu", **keys}
    )


@given(st.data())
def test_no_beginning_of_a_refused_name_is_taken(data: st.DataObject) -> None:
    """argparse would take `hos`, `mod` and `trust-remote` for the whole name."""
    engine = find_engine(DEFAULT)
    names = [name.removesuffix("*") for names in engine.ours.values() for name in names]
    name = data.draw(st.sampled_from(names))
    short = name[: data.draw(st.integers(1, len(name)))]
    if short not in engine.whole_names:
        with pytest.raises(EngineArgumentError):
            check_arguments({short: True})


@pytest.mark.parametrize(
    "name",
    [
        *("host", "port", "uds", "api-key", "root-path", "ssl-keyfile", "model", "tokenizer"),
        *("served-model-name", "load-format", "trust-remote-code", "no-trust-remote-code"),
        *("middleware", "tool-parser-plugin", "reasoning-parser-plugin", "logits-processors"),
        *("worker-cls", "worker-extension-cls", "scheduler-cls", "chat-template", "config"),
        *("allowed-local-media-path", "otlp-traces-endpoint", "kv-transfer-config", "hf-overrides"),
        *("lora-modules", "log-config-file", "kv-cache-dtype", "download-dir", "spec-model"),
        *("model.x", "hos", "mod", "trust-remote", "HOST", "served_model_name", "--dtype", "a b"),
        *("", "block-size=1", "x\n--host", "\u202edtype", "max-model-len.\u00e9x" * 9),
    ],
)
def test_what_is_ours_or_no_name_is_refused(name: str) -> None:
    with pytest.raises(EngineArgumentError) as caught:
        check_arguments({name: True})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value",
    [
        *("--host=0.0.0.0", "-x", "/etc/passwd", "evil.Middleware", "evil:load", "~/x", "a\nb"),
        *('{"inductor_passes": {"post": "os.system"}}', '{"cache_dir": "/tmp"}', "..", 10**400),
        *(math.nan, math.inf, [1], None, {"a": 1}, "\x1b[2J"),
        *([], ["a", ["b"]], ["a", "--host=0.0.0.0"], ["/etc/passwd"], ["a", "evil:load"]),
    ],
)
def test_a_value_is_no_option_file_or_object(value: Any) -> None:
    with pytest.raises(EngineArgumentError):
        check_arguments({"compilation-config": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("structured-outputs-config", '{"reasoning_parser_plugin": "my-plugin.py"}'),
        ("structured-outputs-config", '{"reasoning_parser_plugin": "1.py"}'),
        ("structured-outputs-config.reasoning_parser_plugin", "plugin"),
        ("structured-outputs-config.reasoning-parser-plugin", "plugin"),
        ("compilation-config", '{"pass_config": [{"cache_dir": "cache"}]}'),
        ("compilation-config.debug_dump_path", "here"),
        ("generation-config", "gpt2"),
        ("distributed-executor-backend", "my-plugin.Executor"),
    ],
)
def test_a_file_beside_who_serves_is_not_loaded(name: str, value: str) -> None:
    """A name without a slash is a path, too: from the folder that the command runs in."""
    with pytest.raises(EngineArgumentError):
        check_arguments({name: value})


def test_what_tunes_an_engine_is_taken() -> None:
    arguments: dict[str, Any] = {
        "max-model-len": 2048,
        "gpu-memory-utilization": 0.9,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "compilation-config": '{"mode": 3, "cudagraph_mode": "FULL", "custom_ops": ["+rms_norm"]}',
        "limit-mm-per-prompt": '{"image": 0}',
        "quantization": "fp8",
        "attention-backend": "FLASH_ATTN",
        "kv-cache-dtype-skip-layers": ["sliding_window", "0"],
        "num-gpu-blocks-override": -1,
        "override-generation-config": '{"temperature": 0.2}',
        "generation-config": "vllm",
        "reasoning-parser": "qwen3",
    }
    check_arguments(arguments)
    assert profile(accelerator="cuda", engine_arguments=arguments).engine_arguments == arguments


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engine_arguments", {"hos": "0.0.0.0"}),
        ("engine_arguments", {"load-format": "pt"}),
        ("engine_arguments", {"max-model-len": "4k"}),
        ("engine_arguments", {"tensor-parallel-size": "two"}),
        ("engine_arguments", {"prefill-context-parallel-size": 0}),
        ("environment", {"LD_PRELOAD": "/tmp/x.so"}),
        ("environment", {"A=B": "c"}),
        ("kv_cache_dtype", "fp8 --host 0.0.0.0"),
        ("baseline_kv_cache_dtype", "\x1b[2J"),
    ],
)
def test_a_profile_with_such_a_thing_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        profile(**{key: value})
    assert caught.value.errors()[0]["loc"][0] == key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("LD_PRELOAD", "x"), ("PYTHONPATH", "x"), ("HF_TOKEN", "hf_x"), ("VLLM_API_KEY", "k")),
        *(("OPENAI_API_KEY", "k"), ("AWS_SECRET_ACCESS_KEY", "k"), ("VLLM_PLUGINS", "x")),
        *(("VLLM_LOGGING_CONFIG_PATH", "x"), ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")),
        *(("VLLM_SERVER_DEV_MODE", "1"), ("https_proxy", "x"), ("PATH", "/evil"), ("A\0", "x")),
        *(("CC", "x"), ("CXX", "sh -c id"), ("OPENSSL_CONF", "x"), ("OMP_TOOL_LIBRARIES", "x")),
        *(("VLLM_CACHE_ROOT", "x"), ("TORCHINDUCTOR_CACHE_DIR", "x"), ("CUDA_HOME", "x")),
        *(("NCCL_NET_PLUGIN", "x"), ("VLLM_DP_MASTER_IP", "x"), ("NCCL_CONF_FILE", "x")),
        *(("VLLM_X", "/tmp/x.so"), ("OMP_X", "x.so"), ("RANDOM_NAME", "1"), ("HF_HOME", "x")),
        *(("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_LOGGING_LEVEL", "warning")),
        *(("VLLM_CONFIGURE_LOGGING", "0"), ("VLLM_LOGGING_LEVEL", "")),
        *(("A=B", "c"), ("", "x"), ("A", "x\0y"), ("A", "x\ny"), ("MY_TOKEN", "x"), ("A", 5)),
    ],
)
def test_variables_that_are_refused(name: str, value: Any) -> None:
    with pytest.raises(EngineArgumentError) as caught:
        check_variables({name: value})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_FLASHINFER_SAMPLER", "OMP_WAIT_POLICY"),
        *("TOKENIZERS_PARALLELISM", "VLLM_DISABLED_KERNELS", "ATEN_CPU_CAPABILITY", "VLLM_X"),
        *("VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE", "NCCL_P2P_DISABLE", "CUDA_MODULE_LOADING"),
        *("PREPARE_CPU_FEATURES", "PREPARE_NVCC"),
    ],
)
def test_variables_that_tune_an_engine_are_taken(name: str) -> None:
    check_variables({name: "1"})


@pytest.mark.parametrize("level", ["INFO", "DEBUG", "info"])
def test_the_engines_log_may_say_more(level: str) -> None:
    """Its warnings tell whether it took a checkpoint's scales of the KV cache."""
    check_variables({"VLLM_LOGGING_LEVEL": level, "VLLM_CONFIGURE_LOGGING": "1"})

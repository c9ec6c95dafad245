from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.serving.server import engine_facts, find_reason, hint_for
from pipeline.serving.serving_arguments import ServingArguments
from recipes.catalog import load_profile
from recipes.engines.vllm import Vllm

VLLM = Vllm()

# --- arguments and environment ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "h100", "h20", "h200", "l40s", "b200"])
def test_only_variants_get_the_fp8_kv_cache(name: str) -> None:
    profile = load_profile(name)
    baseline = ServingArguments.of(profile, is_baseline=True)
    variant = ServingArguments.of(profile, is_baseline=False)
    assert baseline.engine_arguments["kv-cache-dtype"] == "auto"
    assert variant.engine_arguments["kv-cache-dtype"] == "fp8"
    differing = {
        key
        for key in baseline.engine_arguments
        if baseline.engine_arguments[key] != variant.engine_arguments[key]
    }
    assert differing == {"kv-cache-dtype"}
    assert baseline.environment == variant.environment == profile.environment
    assert variant.to_dict() == {
        "engine_arguments": variant.engine_arguments,
        "environment": profile.environment,
    }


# --- what the log says --------------------------------------------------------------------------

ENGINE = "(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] "
API = "(APIServer pid=23978) "
TRACEBACK = (
    f"{ENGINE}EngineCore failed to start.\n"
    f"{ENGINE}Traceback (most recent call last):\n"
    f'{ENGINE}  File "vllm/v1/engine/core.py", line 1484, in run_engine_core\n'
    f"{ENGINE}    engine_core = EngineCoreProc(*args, **kwargs)\n"
    f"{ENGINE}                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
)
OUTER = (
    f"{API}Traceback (most recent call last):\n"
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}\n"
)
# vLLM's good starts are full of words that sound like trouble.
GOOD_START = (
    "vllm/entrypoints/openai/api_server.py:51: DeprecationWarning: The `python -m "
    "vllm.entrypoints.openai.api_server` command is deprecated and may be removed.\n"
    "  warnings.warn(\n"
    "W1121 09:51:42.606000 18721 torch/_library/triton.py:53] Triton not available\n"
    f"{API}WARNING 11-21 09:51:43 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase with error current limit exceeds maximum limit. This can cause fd "
    "limit errors like `OSError: [Errno 24] Too many open files`.\n"
    f"{API}INFO 11-21 09:51:43 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
)
NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine."
)
SHARED_MEMORY = (
    "Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 62 MiB free. "
    "Increase /dev/shm (e.g. --shm-size or --ipc=host)."
)
CUDA_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total "
    "capacity of 79.19 GiB of which 1.02 GiB is free."
)
NOT_SUPPORTED = (
    f"{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    f"{API}  Value error, Model architectures ['FooForCausalLM'] are not supported for now. "
    "[type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]\n"
    f"{API}    For further information visit https://errors.pydantic.dev/2.12/v/value_error\n"
)
WRONG_ARGUMENT = (
    "usage: api_server.py [-h] [--headless]\n"
    "api_server.py: error: unrecognized arguments: --max-model-length 2048\n"
)
DEAD = (
    f"{API}ERROR 11-21 10:02:15 [async_llm.py:906] AsyncLLM output_handler failed.\n"
    f"{API}ERROR 11-21 10:02:15 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
LOGS = [
    (
        GOOD_START + TRACEBACK + f"{ENGINE}{NO_CACHE}\n" + OUTER,
        NO_CACHE,
        "reduce the server's memory",
    ),
    (
        GOOD_START + NOT_SUPPORTED,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig "
        "Value error, Model architectures ['FooForCausalLM'] are not supported for now.",
        "does not serve this architecture",
    ),
    (
        GOOD_START + WRONG_ARGUMENT,
        "api_server.py: error: unrecognized arguments: --max-model-length 2048",
        "--profile PATH",
    ),
    # Every process of a tensor-parallel engine repeats the cause; the outer ones only wrap it.
    (
        "(Worker_TP1 pid=7) ERROR 11-21 09:08:43 [multiproc_executor.py:870] "
        f"{CUDA_MEMORY}\n{ENGINE}Exception: WorkerProc initialization failed due to an "
        f"exception in a background process. See stack trace for root cause.\n{OUTER}",
        CUDA_MEMORY,
        "reduce the server's memory",
    ),
    # A cause that comes after the echo is still the cause.
    (DEAD + f"{ENGINE}ValueError: bad scale\n", "ValueError: bad scale", "--profile PATH"),
    # Where there is only the echo, it is better than the log's last line.
    (
        GOOD_START + DEAD + "INFO:     Shutting down\n",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
        "See stack trace (above) for the root cause.",
        "read the log",
    ),
    # What a CPU or the engine's build for it lacks.
    (
        f"{ENGINE}NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.\n",
        "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.",
        "kv_cache_dtype: auto",
    ),
    *(
        (f"{ENGINE}{what}\n{DEAD}", what, "no kernel for such weights")
        for what in (
            "NotImplementedError: No WNA16 MoE backend supports the deployment configuration.",
            "ValueError: Unsupported FP8 MoE backend: NONE",
        )
    ),
    # A worker that a signal ended, before what its end led to.
    *(
        (
            f"{ENGINE}ERROR 11-21 09:08:43 [multiproc_executor.py:316] Worker proc VllmWorker-0 "
            f"died unexpectedly (exit code: {code}), shutting down executor.\n"
            f"{ENGINE}RuntimeError: cancelled\n{DEAD}",
            f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code})",
            hint,
        )
        for code, hint in ((-4, "PREPARE_CPU_FEATURES=avx2"), (-9, "out of memory"))
    ),
    # A container's 64 MB.
    (f"{ENGINE}RuntimeError: {SHARED_MEMORY}\n", f"RuntimeError: {SHARED_MEMORY}", "--shm-size"),
    # The last line, when the start is slow: not the source line under a warning.
    (
        f"{API}INFO 11-21 09:09:00 [weights.py:1] Loading weights: 40 %\n{API}  warnings.warn(\n\n",
        f"{API}INFO 11-21 09:09:00 [weights.py:1] Loading weights: 40 %",
        "read the log",
    ),
    (GOOD_START + "Killed\n", "Killed", "read the log"),
    ("", "", "read the log"),
]


@pytest.mark.parametrize(("text", "reason", "hint"), LOGS)
def test_the_logs_own_reason_is_found(tmp_path: Path, text: str, reason: str, hint: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    assert find_reason(log, VLLM) == reason
    assert hint in hint_for(reason, VLLM)


@given(st.binary(max_size=3000))
def test_any_log_gives_a_short_reason_or_none(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    log = tmp_path_factory.getbasetemp() / "any.log"
    log.write_bytes(content)
    reason = find_reason(log, VLLM)
    assert len(reason) <= 500
    assert "\n" not in reason


def test_facts_of_a_good_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        f"{GOOD_START}"
        "(EngineCore pid=7) INFO 11-21 09:53:40 [__init__.py:1] Selected CPUWNA16LinearKernel "
        "for CompressedTensorsWNA16\n"
        "(EngineCore pid=7) INFO 11-21 09:53:41 [kv_cache_utils.py:2] GPU KV cache size: "
        "93,184 tokens\n"
    )
    assert engine_facts(log, VLLM) == {
        "kv_cache_tokens": "93184",
        "linear_kernel": "CPUWNA16LinearKernel",
    }


def test_kernels_that_the_cuda_build_tells(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO [compressed_tensors_wNa16.py:153] Using MacheteLinearKernel for "
        "CompressedTensorsWNA16\n"
        "INFO [__init__.py:1303] Using CutlassNvFp4LinearKernel for NVFP4 GEMM\n"
        "INFO [int_wna16.py:287] Using 'MARLIN' WNA16 MoE backend.\n"
        "INFO [oracle.py:880] Using MoEPrepareAndFinalizeNoEP\n"
        "INFO [__init__.py:779] Selected CutlassFp8BlockScaledMMKernel for "
        "CompressedTensorsW8A8Fp8\n"
    )
    assert engine_facts(log, VLLM) == {
        "linear_kernel": "MacheteLinearKernel, CutlassNvFp4LinearKernel, "
        "CutlassFp8BlockScaledMMKernel",
        "moe_kernel": "MARLIN",
    }

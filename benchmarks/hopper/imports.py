"""What the servers import, once: a missing module or library shows here; also the product's module names, which are vLLM 0.33's."""

import importlib
import os
import time

began = time.time()
rehearsed = bool(os.environ.get("REHEARSE"))  # on a CPU
names = ["vllm", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.cli_args", "vllm.benchmarks.datasets", "vllm.tokenizers"]
if not rehearsed:
    names += [
        "vllm._C_stable_libtorch",
        "vllm._moe_C_stable_libtorch",
        "vllm.vllm_flash_attn._vllm_fa3_C",
        "vllm.v1.engine.core",
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.worker.gpu.warmup",
        "vllm.model_executor.models.llama",
        "vllm.v1.attention.backends.flash_attn",
        "vllm.compilation.backends",
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    ]
for name in names:
    importlib.import_module(name)
    print(f"{time.time() - began:.1f} s {name}")
import vllm
from vllm.platforms import current_platform

print("vllm", vllm.__version__, "platform", type(current_platform).__name__, current_platform.device_type)
assert rehearsed or current_platform.device_type == "cuda", "vLLM sees no GPU: NVML?"

"""Imports what the servers import, once: a missing module or library shows here, and bytecode is written for all of them."""

import importlib

for name in (
    "vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker", "vllm.model_executor.models.llama",
):  # fmt: skip
    importlib.import_module(name)
vllm = importlib.import_module("vllm")
platform = importlib.import_module("vllm.platforms").current_platform
assert platform.device_type == "cuda", "vLLM sees no GPU: NVML?"
print("vllm", vllm.__version__)

"""A vLLM plugin for CPUs: linear kernels that vLLM lacks or has slower, and seeded sampling.

vLLM calls `register` in each of its processes. It puts the kernels at the end of vLLM's lists, so
each is used only where the stock ones are disabled (``VLLM_DISABLED_KERNELS``, as in the profile
`cpu`) or missing: vLLM has none for NVFP4, MXFP4 and 8-bit weights with 16-bit activations, and for
FP8 in blocks only with AMX.
"""

from .features import hide_features

__all__ = ["hide_features", "register"]


def register() -> None:
    """Offer the kernels to vLLM, also for other types than it expects of a format.

    Formats of AutoAWQ, GPTQ, ModelOpt and `fp8` may be served in float32 with them, and GPTQ's with
    8 bits.
    """
    import torch
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.model_executor.layers.quantization import auto_awq, auto_gptq, fp8, modelopt
    from vllm.platforms import PlatformEnum

    from .fp4 import WidenedMxFp4LinearKernel, WidenedNvFp4LinearKernel, use_for_weights_alone
    from .fp8 import (
        WidenedFP8BlockLinearKernel,
        WidenedFP8LinearKernel,
        quantize_without_library,
    )
    from .seeds import allow_seeded_chunks
    from .wna16 import WidenedWNA16LinearKernel

    register_linear_kernel(WidenedFP8LinearKernel, PlatformEnum.CPU, "fp8")
    register_linear_kernel(WidenedWNA16LinearKernel, PlatformEnum.CPU, "mp")
    register_linear_kernel(WidenedNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
    register_linear_kernel(WidenedMxFp4LinearKernel, PlatformEnum.CPU, "mxfp4")
    linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU].append(WidenedFP8BlockLinearKernel)
    use_for_weights_alone()
    quantize_without_library()
    for config in (
        auto_awq.AutoAWQConfig,
        auto_gptq.AutoGPTQConfig,
        fp8.Fp8Config,
        modelopt.ModelOptFp8Config,
        modelopt.ModelOptNvFp4Config,
    ):
        config.get_supported_act_dtypes = lambda *self: [torch.half, torch.bfloat16, torch.float32]
    # A check for Marlin, a kernel of GPUs; the choice of a kernel is another check.
    auto_gptq.verify_marlin_supported = lambda **facts: None
    allow_seeded_chunks()

"""A vLLM plugin for CPUs: linear kernels that vLLM lacks or has slower, and seeded sampling.

vLLM calls `register` in each of its processes. It puts the kernels at the end of vLLM's lists, so
each is used only where the stock one is disabled: ``VLLM_DISABLED_KERNELS`` with
``ChannelWiseTorchFP8ScaledMMLinearKernel`` or ``CPUWNA16LinearKernel``. vLLM has no stock kernels
for NVFP4 and MXFP4 on CPUs.
"""

from .features import hide_features

__all__ = ["hide_features", "register"]


def register() -> None:
    """Offer the kernels to vLLM; AutoAWQ's format may be served in float32 with them, too."""
    import torch
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.model_executor.layers.quantization.auto_awq import AutoAWQConfig
    from vllm.platforms import PlatformEnum

    from .fp4 import WidenedMxFp4LinearKernel, WidenedNvFp4LinearKernel, use_for_weights_alone
    from .fp8 import WidenedFP8LinearKernel
    from .seeds import allow_seeded_chunks
    from .wna16 import WidenedWNA16LinearKernel

    register_linear_kernel(WidenedFP8LinearKernel, PlatformEnum.CPU, "fp8")
    register_linear_kernel(WidenedWNA16LinearKernel, PlatformEnum.CPU, "mp")
    register_linear_kernel(WidenedNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
    register_linear_kernel(WidenedMxFp4LinearKernel, PlatformEnum.CPU, "mxfp4")
    use_for_weights_alone()
    AutoAWQConfig.get_supported_act_dtypes = classmethod(
        lambda cls: [torch.half, torch.bfloat16, torch.float32]
    )
    allow_seeded_chunks()

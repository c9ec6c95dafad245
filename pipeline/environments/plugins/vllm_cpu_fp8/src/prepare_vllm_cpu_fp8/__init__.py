"""A vLLM plugin: offers a faster FP8 linear kernel on CPUs.

vLLM calls `register` in each of its processes. It puts the kernel at the end of its list, so it is
used only where the stock one is disabled:
``VLLM_DISABLED_KERNELS=ChannelWiseTorchFP8ScaledMMLinearKernel``. Without that, nothing changes.
"""


def register() -> None:
    """Offer the kernel to vLLM."""
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.platforms import PlatformEnum

    from .kernel import WidenedFP8LinearKernel

    register_linear_kernel(WidenedFP8LinearKernel, PlatformEnum.CPU, "fp8")

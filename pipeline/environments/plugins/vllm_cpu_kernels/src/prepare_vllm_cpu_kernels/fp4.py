"""Linear kernels for NVFP4 and MXFP4, emulated: what a Blackwell GPU computes, on a CPU.

Weights are dequantized once, at load. Activations are quantized to 4 bits and back for each call,
as the format requires. So the products are those of the 4-bit kernels, except for the order of
their sums. tests/e2e/test_cpu_fp4_kernels.py compares the layers with compressed-tensors'.

Why not vLLM's own emulation: it dequantizes the weights in every call, and the one for MXFP4 needs
a package of a GPU maker. The price is memory: 16-bit weights take four times what 4 bits take.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearKernel, MxFp4LinearLayerConfig
from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearKernel, NvFp4LinearLayerConfig
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import break_fp4_bytes
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Dynamic

Support = tuple[bool, str | None]
MAX = 6.0  # of e2m1
MAX_FP8 = 448.0
MX_BIAS = 127
MX_LARGEST_EXPONENT = 2  # of e2m1
NVFP4_GROUP = 16
MXFP4_GROUP = 32
MANTISSA_BITS = 23  # of float32
QUARTER = 1 << MANTISSA_BITS - 2


def round_to_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values to the nearest e2m1 value, ties to even; larger ones to 6."""
    size = values.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(values / step) * step).clamp(-MAX, MAX)


def through_nvfp4(x: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """Quantize to NVFP4 and dequantize.

    Args:
        x: activations, ... x K; K is a multiple of 16.
        global_scale: the tensor's factor, by which the scales of the groups fill e4m3's range.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, NVFP4_GROUP))
    extreme = groups.abs().amax(-1, keepdim=True)
    scale = (global_scale * (extreme / MAX)).clamp(max=MAX_FP8)
    scale = scale.to(torch.float8_e4m3fn).to(torch.float32) / global_scale
    rounded = round_to_e2m1(groups / scale.masked_fill(scale == 0, torch.inf))
    return (rounded * scale).flatten(-2).to(x.dtype)


def through_mxfp4(x: torch.Tensor) -> torch.Tensor:
    """Quantize to MXFP4 and dequantize: a power of two for each group of 32 columns.

    Args:
        x: activations, ... x K; K is a multiple of 32.
    """
    groups = x.to(torch.float32).unflatten(-1, (-1, MXFP4_GROUP))
    extreme = groups.abs().amax(-1, keepdim=True)
    # A mantissa of 1.75 or more counts as the next power of two, as in compressed-tensors: e2m1
    # rounds it to that.
    exponent = (extreme.view(torch.int32) + QUARTER >> MANTISSA_BITS) - MX_LARGEST_EXPONENT
    scale = (exponent.clamp(min=1) << MANTISSA_BITS).view(torch.float32)
    return (round_to_e2m1(groups / scale) * scale).flatten(-2).to(x.dtype)


class WidenedNvFp4LinearKernel(NvFp4LinearKernel):  # type: ignore[misc]
    """NVFP4 weights; activations in NVFP4, or 16 bits if the layer has no scale for them."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Support:
        return True, None

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> Support:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the packed weight by the numbers that it stands for, N x K."""
        factors = layer.weight_scale.data.to(torch.float32) * layer.weight_global_scale
        widen(layer, factors)

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x @ weight.T + bias``; x is ... x K, the result ... x N in x's type."""
        global_scale = getattr(layer, "input_global_scale_inv", None)
        inputs = x if global_scale is None else through_nvfp4(x, global_scale)
        return torch.nn.functional.linear(inputs, layer.weight, bias)


class WidenedMxFp4LinearKernel(MxFp4LinearKernel):  # type: ignore[misc]
    """MXFP4 weights; activations in MXFP4 or 16 bits."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Support:
        return True, None

    @classmethod
    def can_implement(cls, config: MxFp4LinearLayerConfig) -> Support:
        if config.activation_quant_key in (None, kMxfp4Dynamic):
            return True, None
        return False, "activations are neither MXFP4 nor 16 bits"

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the packed weight by the numbers that it stands for, N x K."""
        exponents = layer.weight_scale.data.view(torch.uint8).to(torch.int32) - MX_BIAS
        widen(layer, torch.ldexp(torch.ones(exponents.shape), exponents))

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x @ weight.T + bias``; x is ... x K, the result ... x N in x's type."""
        inputs = x if self.config.activation_quant_key is None else through_mxfp4(x)
        return torch.nn.functional.linear(inputs, layer.weight, bias)


def widen(layer: torch.nn.Module, factors: torch.Tensor) -> None:
    """Replace `layer.weight` (N x K / 2 bytes) by its values in the model's type.

    Args:
        layer: a linear layer of vLLM.
        factors: N x groups, float32; multiply the e2m1 values.
    """
    packed = layer.weight.data.view(torch.uint8)
    values = break_fp4_bytes(packed, torch.float32).unflatten(-1, (factors.shape[1], -1))
    weight = (values * factors.unsqueeze(-1)).flatten(-2).to(torch.get_default_dtype())
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.weight_scale = None


def use_for_weights_alone() -> None:
    """Let vLLM choose the kernel where activations have 16 bits: it insists on a GPU's there."""
    from vllm.model_executor.layers.quantization import modelopt
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w4a4_nvfp4 as scheme,
    )

    choose = scheme.init_nvfp4_linear_kernel

    def chosen(use_a16: bool = False) -> Any:
        if use_a16:
            return WidenedNvFp4LinearKernel(NvFp4LinearLayerConfig())
        return choose()

    scheme.init_nvfp4_linear_kernel = modelopt.init_nvfp4_linear_kernel = chosen

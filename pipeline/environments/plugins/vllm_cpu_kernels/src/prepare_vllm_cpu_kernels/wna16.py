"""The WNA16 linear kernel (4- or 8-bit weights, 16- or 32-bit activations) with widened weights.

Why: vLLM's library for CPUs without AVX-512 has no `cpu_gemm_wna16`, and the one for those with it
takes neither float32 activations nor 8-bit weights. Here each weight, `(q - zero point) * scale`,
is computed in FP32 at load, and the matmul is an ordinary one. The stock kernel rounds each weight
to the activations' type; so does this one, so that in bf16 both multiply the same numbers.
tests/e2e/test_cpu_wna16_kernel.py compares the two.

The price is memory: FP32 weights take 32 bits each, others 16.
"""

from dataclasses import replace

import torch
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    unpack_quantized_values_into_int32,
)
from vllm.scalar_type import scalar_types


class WidenedWNA16LinearKernel(CPUWNA16LinearKernel):  # type: ignore[misc]
    """Takes what the stock kernel takes, and 8 bits; weights are widened once, at load."""

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        is_8_bit = c.weight_type == scalar_types.uint8b128
        found: tuple[bool, str | None] = super().can_implement(
            replace(c, weight_type=scalar_types.uint4b8) if is_8_bit else c
        )
        return found

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the layer's packed weight by the numbers that it stands for, N x K.

        Scales and zero points, which are in these numbers now, are let go.
        """
        packed = getattr(layer, self.w_q_name)
        scales = getattr(layer, self.w_s_name)
        kind = self.config.weight_type
        # Packed along K; stored as [N, K / 8] by compressed-tensors, [K / 8, N] by GPTQ's format.
        by_row = packed.data if packed.input_dim == 1 else packed.data.t()
        whole = unpack_quantized_values_into_int32(by_row.contiguous(), kind, 1)
        per_group = scales.data if scales.output_dim == 0 else scales.data.t()
        zeros: torch.Tensor | int = kind.bias
        if self.config.zero_points:
            stored = getattr(layer, self.w_zp_name)
            by_column = stored.data.t() if stored.output_dim == 0 else stored.data
            # Packed along N.
            zeros = unpack_quantized_values_into_int32(by_column.contiguous(), kind, 1).t()
            zeros = widened(zeros, whole.shape[1])
        scale = widened(per_group.to(torch.float32), whole.shape[1])
        weight = ((whole - zeros).to(torch.float32) * scale).to(self.config.act_type)
        setattr(layer, self.w_q_name, torch.nn.Parameter(weight, requires_grad=False))
        for name in filter(None, (self.w_s_name, self.w_zp_name)):
            setattr(layer, name, None)

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x @ weight.T + bias``; x is ... x K, the result ... x N in x's type."""
        return torch.nn.functional.linear(x, getattr(layer, self.w_q_name), bias)


def widened(by_group: torch.Tensor, columns: int) -> torch.Tensor:
    """N x groups, as N x columns: each group's value once a column of it."""
    return by_group.repeat_interleave(columns // by_group.shape[1], dim=1)

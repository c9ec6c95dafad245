"""FP8 linear kernels with the weights widened to FP32 once, at load; activations are FP8, too.

Why: on a CPU `torch._scaled_mm` takes some 5 ms where an FP32 matmul of the same shape takes
0.1 ms, and vLLM's kernels for scales of a matrix or block need AMX and leave activations in 16
bits, unlike a GPU's. Every e4m3 value is exact in FP32, and so is the product of two (4 bits of
significand each). So the sums differ from the stock kernels' by their order alone: 0 to 4e-6 on
random matrices. tests/e2e/test_cpu_fp8_kernel.py compares them.

The price is memory: four times what the FP8 weights take.
"""

from typing import Any

import torch
from vllm import _custom_ops
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import (
    ChannelWiseTorchFP8ScaledMMLinearKernel,
)
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearLayerConfig,
)

LARGEST = 448.0  # of e4m3


def quantize_without_library() -> None:
    """Let vLLM give matrices that it joins one scale; its library for CPUs lacks the operator."""
    stock = _custom_ops.scaled_fp8_quant

    def quantize(
        input: torch.Tensor, scale: torch.Tensor | None = None, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if scale is None or rest or named:
            found: tuple[torch.Tensor, torch.Tensor] = stock(input, scale, *rest, **named)
            return found
        numbers = (input.to(torch.float32) / scale).clamp(-LARGEST, LARGEST)
        return numbers.to(torch.float8_e4m3fn), scale

    _custom_ops.scaled_fp8_quant = quantize


class WidenedFP8LinearKernel(ChannelWiseTorchFP8ScaledMMLinearKernel):  # type: ignore[misc]
    """The stock channel-wise kernel, for any unit of scales; the matmul and its weights differ."""

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the layer's FP8 weight (K x N, e4m3) by the same numbers in FP32."""
        super().process_weights_after_loading(layer)
        name = self.layer_param_names[0]
        widened = getattr(layer, name).data.to(torch.float32)
        setattr(layer, name, torch.nn.Parameter(widened, requires_grad=False))

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,  # noqa: N803  (vLLM's own names: it passes them by keyword)
        B: torch.Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> torch.Tensor:
        """Compute ``(A @ B) * As * Bs.T + bias`` in FP32; return it in `out_dtype`.

        Args:
            A: activations, M x K, e4m3.
            B: weights, K x N, FP32 holding e4m3 values.
            out_dtype: type of the result.
            As: scale of each token, M x 1 (or one for all).
            Bs: scale of each output channel, N x 1 or N (or one for all).
            bias: N, or None.
            output_shape: shape of the result; its product is M x N.
        """
        output = torch.mm(A.to(torch.float32), B)
        output = output * As * (Bs.t() if Bs.dim() == 2 else Bs)
        if bias is not None:
            output = output + bias
        return output.to(out_dtype).view(*output_shape)

    def get_output_padding(self) -> int | None:
        """None: the stock kernel pads to 17 tokens for `_scaled_mm`'s sake, which is not used."""
        return None


class WidenedFP8BlockLinearKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """Weights with a scale for each block, activations with one for each token and its columns."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the layer's weight (N x K, e4m3) by what it stands for, and its scales by ones.

        vLLM multiplies both where it needs the weights themselves (MLA).
        """
        super().process_weights_after_loading(layer)
        found = self._get_layer_params(layer)
        scales = found.block_scale.data.to(torch.float32)
        (rows, columns) = found.weight.shape
        (high, wide) = self.weight_group_shape
        by_row = scales.repeat_interleave(high, dim=0)[:rows]
        factors = by_row.repeat_interleave(wide, dim=1)[:, :columns]
        weight = found.weight.data.to(torch.float32) * factors
        for name, value in (
            (found.WEIGHT, weight),
            (found.block_scale_attr, torch.ones_like(scales)),
        ):
            setattr(layer, name, torch.nn.Parameter(value, requires_grad=False))

    def apply_block_scaled_mm(
        self,
        A: torch.Tensor,  # noqa: N803
        B: torch.Tensor,  # noqa: N803
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        """Return ``(A * As) @ B.T`` in FP32, M x N.

        Args:
            A: activations, M x K, e4m3.
            B: weights, N x K, FP32, with their scales in them.
            As: scales of each token's groups of columns, M x groups.
            Bs: ones.
        """
        factors = As.repeat_interleave(self.quant_fp8.group_size, dim=1)[:, : A.shape[1]]
        return torch.mm(A.to(torch.float32) * factors, B.t())

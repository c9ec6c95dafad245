"""The FP8 W8A8 linear kernel with the weights widened to FP32 once, at load.

Why: on a CPU `torch._scaled_mm` takes some 5 ms where an FP32 matmul of the same shape takes
0.1 ms. Every e4m3 value is exact in FP32, and so is the product of two (4 bits of significand
each), so that the sums differ from the stock kernel's by their order alone: 0 to 4e-6 on random
matrices. tests/e2e/test_cpu_fp8_kernel.py compares the two.

The price is memory: four times what the FP8 weights take.
"""

import torch
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import (
    ChannelWiseTorchFP8ScaledMMLinearKernel,
)


class WidenedFP8LinearKernel(ChannelWiseTorchFP8ScaledMMLinearKernel):  # type: ignore[misc]
    """The stock channel-wise kernel; only the matmul and what it reads differ."""

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
            Bs: scale of each output channel, N x 1.
            bias: N, or None.
            output_shape: shape of the result; its product is M x N.
        """
        output = torch.mm(A.to(torch.float32), B)
        output = output * As * Bs.t()
        if bias is not None:
            output = output + bias
        return output.to(out_dtype).view(*output_shape)

    def get_output_padding(self) -> int | None:
        """None: the stock kernel pads to 17 tokens for `_scaled_mm`'s sake, which is not used."""
        return None

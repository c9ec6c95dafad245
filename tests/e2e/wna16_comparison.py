"""Run in the serve environment: compare our kernel with vLLM's own and with plain arithmetic.

Prints one line of JSON. Not a test itself: tests/e2e/test_cpu_wna16_kernel.py starts it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy
import torch
from vllm import _custom_ops
from vllm.model_executor.kernels.linear import choose_mp_linear_kernel
from vllm.model_executor.kernels.linear.mixed_precision import MPLinearLayerConfig
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.plugins import load_general_plugins
from vllm.scalar_type import scalar_types

STOCK = CPUWNA16LinearKernel.__name__
ROWS = 192
NAMES = {"w_q_param_name": "q", "w_s_param_name": "s", "w_zp_param_name": "z"}


def main() -> None:
    load_general_plugins()
    torch.manual_seed(0)
    untold = type_of(config(576, torch.bfloat16, 64, zero_points=True)).__name__
    os.environ["VLLM_DISABLED_KERNELS"] = STOCK
    comparisons = [
        compare(columns, dtype, group, zero_points=zeros, layout=layout, with_bias=bias, tokens=n)
        for columns, group in ((576, 64), (576, 32), (1536, 128), (576, -1))
        for zeros in (True, False)
        for dtype in (torch.float32, torch.bfloat16)
        for layout, bias, n in (("rows", False, 1), ("columns", True, 33))
    ] + [
        compare(
            columns,
            dtype,
            group,
            zero_points=False,
            layout=layout,
            with_bias=True,
            tokens=5,
            bits=8,
        )
        for columns, group in ((576, 64), (1536, -1))
        for dtype in (torch.float32, torch.bfloat16)
        for layout in ("rows", "columns")
    ]
    print("RESULT " + json.dumps({"untold": untold, "comparisons": comparisons}))


def config(columns: int, dtype: Any, group: int, *, zero_points: bool, bits: int = 4) -> Any:
    symmetric = scalar_types.uint4b8 if bits == 4 else scalar_types.uint8b128
    return MPLinearLayerConfig(
        full_weight_shape=(columns, ROWS),
        partition_weight_shape=(columns, ROWS),
        weight_type=scalar_types.uint4 if zero_points else symmetric,
        act_type=dtype,
        group_size=group,
        zero_points=zero_points,
    )


def type_of(wanted: Any) -> Any:
    return choose_mp_linear_kernel(wanted)


def compare(
    columns: int,
    dtype: Any,
    group: int,
    *,
    zero_points: bool,
    layout: str,
    with_bias: bool,
    tokens: int,
    bits: int = 4,
) -> dict[str, Any]:
    """One layer: the plugin's result, the stock kernel's where it has one, and that of numpy."""
    generator = numpy.random.default_rng(columns + group)
    groups = 1 if group == -1 else columns // group
    q = generator.integers(0, 2**bits, (ROWS, columns))
    middle = numpy.full((ROWS, groups), 2 ** (bits - 1))
    z = generator.integers(0, 16, (ROWS, groups)) if zero_points else middle
    scales = torch.tensor(generator.uniform(0.001, 0.03, (ROWS, groups))).to(dtype)
    x = torch.randn((2, tokens, columns), dtype=torch.float32).to(dtype)
    bias = torch.randn(ROWS, dtype=torch.float32).to(dtype) if with_bias else None

    # Not by vLLM's own unpacking, which the kernel uses.
    weight = (q - z.repeat(columns // groups, axis=1)) * scales.double().numpy().repeat(
        columns // groups, axis=1
    )
    exact = x.double().numpy() @ weight.T + (0 if bias is None else bias.double().numpy())
    wanted = config(columns, dtype, group, zero_points=zero_points, bits=bits)
    kind = type_of(wanted)
    ours = result_of(
        kind(wanted, **NAMES), layer_of(q, z, scales, layout, zero_points, bits), x, bias
    )
    stock = None
    # It has no float32, and on a CPU without AVX-512 it is not there at all.
    if bits == 4 and dtype is torch.bfloat16 and hasattr(torch.ops._C, "cpu_gemm_wna16"):
        kernel = CPUWNA16LinearKernel(wanted, **NAMES)
        stock = result_of(kernel, layer_of(q, z, scales, layout, zero_points, bits), x, bias)
    eps = torch.finfo(dtype).eps
    return {
        "case": [columns, str(dtype), group, zero_points, layout, with_bias, tokens],
        "kernel": kind.__name__,
        "dtype": str(ours.dtype),
        "shape": list(ours.shape),
        "largest": float(abs(exact).max()),
        "off": float(abs(ours.double().numpy() - exact).max()),
        # From the products' sizes: what rounding each of them to the type could come to.
        "rounding": float(eps * (abs(x.double().numpy()) @ abs(weight).T).max()),
        "off_stock": None if stock is None else float((ours - stock).abs().max()),
        "stock_off": None if stock is None else float(abs(stock.double().numpy() - exact).max()),
    }


def layer_of(q: Any, z: Any, scales: Any, layout: str, zero_points: bool, bits: int) -> Any:
    """A layer as compressed-tensors ("rows", N x K / 8) or as AutoAWQ's is turned ("columns")."""
    layer = torch.nn.Module()
    by_row = layout == "rows"
    packed = packed_along_columns(q, bits)
    zeros = packed_along_columns(z.T, bits)  # groups x N / 8
    parts = {
        "q": (packed if by_row else packed.t().contiguous(), by_row),
        "s": (scales if by_row else scales.t().contiguous(), by_row),
        **({"z": (zeros.t().contiguous() if by_row else zeros, by_row)} if zero_points else {}),
    }
    for name, (data, rows_first) in parts.items():
        parameter = torch.nn.Parameter(data.clone(), requires_grad=False)
        inputs, outputs = (1, 0) if rows_first else (0, 1)
        parameter.input_dim, parameter.output_dim = inputs, outputs
        parameter.packed_dim = outputs if name == "z" else inputs
        layer.register_parameter(name, parameter)
    layer.bias = None
    return layer


def packed_along_columns(values: Any, bits: int) -> Any:
    """Numbers of as many bits in int32 words, the first in the lowest bits."""
    parts = values.astype(numpy.uint32).reshape(values.shape[0], -1, 32 // bits)
    words = numpy.zeros(parts.shape[:2], dtype=numpy.uint32)
    for place in range(32 // bits):
        words |= parts[:, :, place] << numpy.uint32(bits * place)
    return torch.from_numpy(words.view(numpy.int32))


def result_of(kernel: Any, layer: Any, x: Any, bias: Any) -> Any:
    kernel.process_weights_after_loading(layer)
    return kernel.apply_weights(layer, x, bias)


if __name__ == "__main__":
    _ = _custom_ops  # imports vLLM's library of kernels
    main()

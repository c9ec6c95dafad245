"""The CPU FP8 plugin against vLLM's own kernel and plain arithmetic, in the serving environment.

The numbers have to be the same within rounding: FP8 quality gates on machines without a GPU
depend on that.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from pipeline.environments.environment import Environment, ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.hardware import cpu_features
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile

STOCK = "ChannelWiseTorchFP8ScaledMMLinearKernel"

COMPARE = """
import json
import os

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import (
    ChannelWiseTorchFP8ScaledMMLinearKernel,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    create_fp8_quant_key,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)
from vllm.model_executor.layers.quantization.utils.w8a8_utils import requantize_with_max_scale
from vllm.plugins import load_general_plugins

load_general_plugins()
E4M3 = torch.float8_e4m3fn


class Layer(torch.nn.Module):
    def __init__(self, outputs, inputs):
        super().__init__()
        weight = torch.randn(outputs, inputs)
        scale = weight.abs().amax(dim=1, keepdim=True) / 448
        # K x N seen through a transpose, and one scale an output channel: as vLLM keeps them.
        self.weight = torch.nn.Parameter((weight / scale).to(E4M3).t(), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(scale, requires_grad=False)


def chosen_kernel(outputs, inputs, dtype):
    return init_fp8_linear_kernel(
        activation_quant_key=kFp8DynamicTokenSym,
        weight_quant_key=kFp8StaticChannelSym,
        input_dtype=dtype,
        out_dtype=dtype,
        weight_shape=(outputs, inputs),
    )


def compare(shape, outputs, with_bias, dtype):
    inputs = shape[-1]
    layer = Layer(outputs, inputs)
    x = torch.randn(shape, dtype=torch.float32).to(dtype)
    bias = torch.randn(outputs, dtype=dtype) if with_bias else None
    # The loaded plugin, chosen by vLLM itself since the stock kernel is disabled.
    widened = chosen_kernel(outputs, inputs, dtype)
    # Made directly: a disabled kernel is not to be had from vLLM's own choice.
    stock = ChannelWiseTorchFP8ScaledMMLinearKernel(widened.config, widened.layer_param_names)
    stock.process_weights_after_loading(layer)
    expected = stock.apply_weights(layer, x, bias)
    widened.process_weights_after_loading(layer)
    actual = widened.apply_weights(layer, x, bias)
    assert layer.weight.dtype == torch.float32
    a, e = actual.float(), expected.float()
    return {
        "shape": list(shape),
        "kernels": [type(stock).__name__, type(widened).__name__],
        "shapes": [list(actual.shape), list(expected.shape)],
        "dtypes": [str(actual.dtype), str(expected.dtype)],
        "largest": e.abs().max().item(),
        "difference": (a - e).abs().max().item(),
        # In steps between neighbouring values of the output type.
        "steps": ((a - e).abs() / (e.abs().clamp(min=1.0) * torch.finfo(dtype).eps)).max().item(),
    }


BLOCK = GroupShape(128, 128)
UNITS = {
    "static": (kFp8StaticTensorSym, kFp8StaticTensorSym),
    "dynamic": (kFp8DynamicTensorSym, kFp8StaticTensorSym),
    "block": (
        create_fp8_quant_key(static=False, group_shape=GroupShape(1, 128)),
        create_fp8_quant_key(static=True, group_shape=BLOCK),
    ),
}


def by_block(values, high, wide):
    # The largest value of each block, in the shape of the values.
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % wide, 0, -rows % high)).abs()
    blocks = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).amax(dim=(1, 3))
    whole = blocks.repeat_interleave(high, 0).repeat_interleave(wide, 1)
    return blocks, whole[:rows, :columns]


def through_fp8(values, high, wide):
    # The scales, the FP8 numbers, and what these stand for.
    blocks, whole = by_block(values, high, wide)
    numbers = (values / (whole / 448)).to(E4M3)
    return blocks / 448, numbers, numbers.double() * (whole / 448).double()


def compare_unit(unit, tokens, rows, columns):
    # A layer with scales of a matrix or of blocks, and plain arithmetic.
    activation_key, weight_key = UNITS[unit]
    weight, x = torch.randn(rows, columns), torch.randn(tokens, columns)
    weight *= torch.logspace(-2, 0, rows)[:, None]
    high, wide = (128, 128) if unit == "block" else weight.shape
    scale, numbers, exact = through_fp8(weight, high, wide)
    group = 1 if unit == "block" else tokens
    input_scale, _, used = through_fp8(x, group, wide)
    kernel = init_fp8_linear_kernel(
        activation_quant_key=activation_key,
        weight_quant_key=weight_key,
        input_dtype=torch.float32,
        out_dtype=torch.float32,
        weight_shape=(rows, columns),
    )
    layer = torch.nn.Module()
    parts = {"weight": numbers if unit == "block" else numbers.t(), "weight_scale": scale}
    if unit != "block":
        parts["weight_scale"] = scale.reshape(())
    if unit == "static":
        parts["input_scale"] = input_scale.reshape(())
    for name, value in parts.items():
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    kernel.process_weights_after_loading(layer)
    bias = torch.randn(rows)
    wanted = used @ exact.T + bias
    found = kernel.apply_weights(layer, x, bias).double()
    unquantized = x.double() @ exact.T + bias
    return {
        "case": [unit, tokens, rows, columns],
        "kernel": type(kernel).__name__,
        "off": float((found - wanted).norm() / wanted.norm()),
        "changed": float((unquantized - wanted).norm() / wanted.norm()),
    }


torch.manual_seed(0)
results = []
with set_current_vllm_config(VllmConfig()):
    untold = type(chosen_kernel(192, 576, torch.bfloat16)).__name__
    joined = torch.cat([torch.full((2, 16), 224.0), torch.full((3, 16), 448.0)]).to(E4M3)
    shared, together = requantize_with_max_scale(joined, torch.tensor([1.0, 2.0]), [2, 3])
    joint = {"scale": float(shared), "rows": together.float()[:, 0].tolist()}
    # First: where activations had a scale for each token before, vLLM's compiled function has it
    # here, too.
    os.environ["VLLM_DISABLED_KERNELS"] = os.environ["AS_SERVED"]
    units = [
        compare_unit(unit, tokens, rows, columns)
        for unit in UNITS
        for tokens, rows, columns in [(1, 192, 576), (33, 256, 512), (7, 576, 1536)]
    ]
    os.environ["VLLM_DISABLED_KERNELS"] = ChannelWiseTorchFP8ScaledMMLinearKernel.__name__
    for shape in [(1, 576), (33, 576), (2, 7, 576), (17, 1536)]:
        for with_bias in (False, True):
            for dtype in (torch.float32, torch.bfloat16):
                results.append(compare(shape, 192, with_bias, dtype))
found = {"untold": untold, "comparisons": results, "units": units, "joint": joint}
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


@pytest.fixture(scope="module")
def serving() -> Environment:
    return ensure("serve", Accelerator.CPU, load_settings(), NullProgress())


@pytest.fixture(scope="module")
def result(serving: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script printed; vLLM takes some 15 s to import."""
    script = tmp_path_factory.mktemp("kernel") / "compare.py"
    script.write_text(COMPARE)
    variables = {key: value for key, value in os.environ.items() if key != "VLLM_DISABLED_KERNELS"}
    answer = subprocess.run(
        [str(serving.python), "-I", str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **variables,
            "VLLM_NO_USAGE_STATS": "1",
            "AS_SERVED": load_profile("cpu").environment["VLLM_DISABLED_KERNELS"],
        },
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def comparisons(result: dict[str, Any]) -> list[Any]:
    found: list[Any] = result["comparisons"]
    return found


def test_every_shape_was_compared(comparisons: list[Any]) -> None:
    assert len(comparisons) == 16
    shapes = {tuple(found["shape"]) for found in comparisons}
    assert shapes == {(1, 576), (33, 576), (2, 7, 576), (17, 1536)}


def test_vllm_keeps_its_own_kernel_unless_told(result: dict[str, Any]) -> None:
    assert result["untold"] == STOCK


def test_vllm_chooses_the_plugin_where_the_stock_kernel_is_disabled(comparisons: list[Any]) -> None:
    for found in comparisons:
        assert found["kernels"] == [STOCK, "WidenedFP8LinearKernel"]


def test_same_shape_and_type(comparisons: list[Any]) -> None:
    for found in comparisons:
        assert found["shapes"][0] == found["shapes"][1] == [*found["shape"][:-1], 192]
        assert found["dtypes"][0] == found["dtypes"][1]


def test_same_numbers_within_the_rounding_of_a_sum(comparisons: list[Any]) -> None:
    full = [found for found in comparisons if found["dtypes"][0] == "torch.float32"]
    assert len(full) == 8
    for found in full:
        assert found["largest"] > 1, "a comparison of zeros says nothing"
        # The products are the same numbers; only the order of up to 1536 of them in a sum differs.
        assert found["difference"] <= 1e-6 * found["largest"], found


@pytest.mark.skipif(
    "avx512f" not in cpu_features(),
    reason="the profile computes in float32 here: products in bf16 are not the same twice",
)
def test_same_numbers_within_one_step_of_bfloat16(comparisons: list[Any]) -> None:
    half = [found for found in comparisons if found["dtypes"][0] == "torch.bfloat16"]
    assert len(half) == 8
    for found in half:
        assert found["steps"] <= 1.0, found


def test_scales_of_a_matrix_and_of_blocks_are_multiplied_as_they_are_meant(
    result: dict[str, Any],
) -> None:
    """On any CPU, with activations in FP8 as on a GPU."""
    assert len(result["units"]) == 9
    for found in result["units"]:
        in_blocks = found["case"][0] == "block"
        name = "WidenedFP8BlockLinearKernel" if in_blocks else "WidenedFP8LinearKernel"
        assert found["kernel"] == name
        assert found["changed"] > 0.01, "the activations were not quantized"
        assert found["off"] < 1e-5, found


def test_matrices_that_vllm_joins_get_the_larger_scale(result: dict[str, Any]) -> None:
    """Its library for CPUs has no operator for that."""
    assert result["joint"] == {"scale": 2.0, "rows": [112.0, 112.0, 448.0, 448.0, 448.0]}

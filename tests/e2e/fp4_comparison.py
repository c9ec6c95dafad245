"""Run in the serve environment: compare layers of our 4-bit float kernels with compressed-tensors'.

Prints one line of JSON. Not a test itself: tests/e2e/test_cpu_fp4_kernels.py starts it.
"""

from __future__ import annotations

import json
import tempfile
import time
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (
    QuantizationScheme,
    QuantizationStatus,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.lifecycle.forward import dequantize, forward_quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from prepare_vllm_cpu_kernels.fp4 import through_mxfp4, through_nvfp4
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.plugins import load_general_plugins

LAYERS = 70  # of each format
FORMATS = {
    "NVFP4": "nvfp4-pack-quantized",
    "NVFP4A16": "nvfp4-pack-quantized",
    "MXFP4": "mxfp4-pack-quantized",
}
SHAPES = ((64, 32), (192, 576), (576, 1536), (48, 96))
GROUP = {"NVFP4": 16, "NVFP4A16": 16, "MXFP4": 32}


def main() -> None:
    load_general_plugins()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        initialize_model_parallel()
        found = [compare(name, number) for name in FORMATS for number in range(LAYERS)]
        times = {name: time_of(name) for name in FORMATS}
    print("RESULT " + json.dumps({"comparisons": found, "times": times}))


def compare(name: str, number: int) -> dict[str, Any]:
    """One random layer for inputs of float32 or bf16: the kernel's output and the reference's."""
    outputs, inputs = SHAPES[number % len(SHAPES)]
    kind = number // len(SHAPES) % 4
    weight, x = numbers((outputs, inputs), kind), numbers((3, 5, inputs), kind)
    dtype = torch.bfloat16 if number // 2 % 2 else torch.float32
    x = x.to(dtype)
    scheme = scheme_of(name)
    x = x.to(torch.float32)
    module = reference(scheme, weight, x)
    layer, chosen = loaded(scheme, module, outputs, inputs, torch.float32)
    ours = chosen.apply_weights(layer, x)
    used = asked = x
    if scheme.input_activations:
        asked = forward_quantize(module, x, "input", scheme.input_activations)
        two_levels = scheme.weights.strategy == "tensor_group"
        used = through_nvfp4(x, module.input_global_scale) if two_levels else through_mxfp4(x)
    exact = asked.double() @ module.dequantized.double().T
    sizes = asked.abs() @ module.dequantized.abs().T
    return {
        "scheme": name,
        "kernel": type(chosen.kernel).__name__,
        "kind": kind,
        "off": float((ours.double() - exact).abs().max()),
        # What a sum of as many products in float32 may differ by.
        "rounding": float(torch.finfo(torch.float32).eps * inputs**0.5 * sizes.max()),
        "off_activations": float((used - asked).abs().max()),
        "changed": float((asked - x).norm() / x.norm()),
    }


def numbers(shape: tuple[int, ...], kind: int) -> torch.Tensor:
    """Normal, heavy-tailed, with zero groups and ties, or of very different rows."""
    values = torch.randn(shape)
    if kind == 1:
        values = values * torch.randn(shape).exp() ** 2
    elif kind == 2:
        values = (values * 4).round() / 4
        values[..., :32] = 0
    elif kind == 3:
        values = values * torch.logspace(-4, 3, shape[-1])
    return values


def scheme_of(name: str) -> QuantizationScheme:
    return preset_name_to_scheme(name, ["Linear"])


def reference(scheme: QuantizationScheme, weight: torch.Tensor, x: torch.Tensor) -> Any:
    """A layer with compressed-tensors' scales, its packed parts, and the weights unpacked."""
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    args = scheme.weights
    two_levels = args.strategy == "tensor_group"
    global_scale = generate_gparam(weight.amin(), weight.amax()) if two_levels else None
    groups = weight.unflatten(-1, (-1, args.group_size))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=global_scale)
    state = {"weight": weight, "weight_scale": scale}
    if two_levels:
        state["weight_global_scale"] = global_scale
    name = next(form for preset, form in FORMATS.items() if scheme_of(preset) == scheme)
    compressor = BaseCompressor.get_value_from_registry(name)
    module.packed = compressor.compress(state, scheme)
    module.dequantized = dequantized(module.packed, scheme)
    if two_levels and scheme.input_activations:
        module.input_global_scale = generate_gparam(x.amin(), x.amax())
    module.quantization_status = QuantizationStatus.FROZEN
    return module


def dequantized(packed: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    """Return the weights in float32; the compressor's own `decompress` rounds them to bf16."""
    rows, half = packed["weight_packed"].shape
    values = unpack_fp4_from_uint8(packed["weight_packed"], rows, 2 * half, torch.float32)
    scale = packed["weight_scale"]
    if scheme.weights.strategy != "tensor_group":
        scale = decompress_mx_scale(scale)
    return dequantize(
        values,
        scale.to(torch.float32),
        global_scale=packed.get("weight_global_scale"),
        dtype=torch.float32,
    )


def loaded(
    scheme: QuantizationScheme, module: Any, outputs: int, inputs: int, dtype: torch.dtype
) -> tuple[Any, Any]:
    """vLLM's layer with these parts, after loading, and the scheme that vLLM chose for it."""
    config = CompressedTensorsConfig({}, [], "", [], [])
    chosen = config._get_scheme_from_parts(scheme.weights, scheme.input_activations)
    layer = torch.nn.Module()
    chosen.create_weights(
        layer, [outputs], inputs, params_dtype=dtype, weight_loader=lambda *_: None
    )
    for name, value in module.packed.items():
        getattr(layer, name).data.copy_(value.reshape(getattr(layer, name).shape))
    if hasattr(layer, "input_global_scale"):
        layer.input_global_scale.data.copy_(module.input_global_scale)
    torch.set_default_dtype(dtype)
    chosen.process_weights_after_loading(layer)
    torch.set_default_dtype(torch.float32)
    return layer, chosen


def time_of(name: str) -> float:
    """Milliseconds of a layer for 256 tokens in bf16, over a plain bf16 layer's."""
    outputs, inputs = 1536, 576
    weight, x = numbers((outputs, inputs), 0), numbers((256, inputs), 0)
    scheme = scheme_of(name)
    module = reference(scheme, weight, x)
    layer, chosen = loaded(scheme, module, outputs, inputs, torch.bfloat16)
    x, plain = x.bfloat16(), weight.bfloat16()
    best = [float("inf"), float("inf")]
    for _ in range(30):
        for place, call in enumerate(
            (lambda: chosen.apply_weights(layer, x), lambda: torch.nn.functional.linear(x, plain))
        ):
            start = time.perf_counter()
            call()
            best[place] = min(best[place], time.perf_counter() - start)
    return best[0] / best[1]


if __name__ == "__main__":
    main()

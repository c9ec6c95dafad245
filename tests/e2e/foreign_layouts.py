"""Run inside the `quantize` environment: writes variants of a model as other programs lay them out.

`python foreign_layouts.py SOURCE FOLDER` writes FOLDER/gptq, gptq-8, fp8, modelopt-fp8,
modelopt-nvfp4, gguf-q8 and gguf-q4. Nothing of this project takes part: the layouts follow
GPTQModel's, ModelOpt's and transformers' files, and the numbers of GGUF come from the package gguf.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GROUP = 32
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's largest weight, for its scale
TEXT = "The quick brown fox jumps over the lazy dog. In 1969 two people walked on the moon; why? "
# vLLM multiplies these together, so ModelOpt gives them one scale.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
Parts = dict[str, torch.Tensor]
Convert = Callable[[str, torch.Tensor], Parts]


def main(source: Path, folder: Path) -> None:
    """Write every variant."""
    tensors = load_file(source / "model.safetensors")
    largest = largest_inputs(source)
    matrices = {name: tensors[f"{name}.weight"].float() for name in largest}
    ceilings = {name: float(matrices[name].abs().max()) for name in largest}
    for name in largest:
        above, _, own = name.rpartition(".")
        for group in FUSED:
            if own in group:
                together = [f"{above}.{each}" for each in group]
                ceilings[name] = max(float(matrices[each].abs().max()) for each in together)

    def modelopt_fp8(name: str, weight: torch.Tensor) -> Parts:
        return {**fp8(name, weight), "input_scale": torch.tensor(largest[name] / 448)}

    def modelopt_nvfp4(name: str, weight: torch.Tensor) -> Parts:
        factor = torch.tensor(ceilings[name] / (6 * 448))
        groups = weight.unflatten(1, (-1, 16))
        scales = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
        numbers = (groups / (scales.float() * factor)[..., None]).flatten(1)
        codes = (numbers.abs()[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
        codes |= (numbers < 0).to(torch.uint8) << 3
        return {
            "weight": codes[:, ::2] | codes[:, 1::2] << 4,
            "weight_scale": scales,
            "weight_scale_2": factor,
            "input_scale": torch.tensor(largest[name] / (6 * 448)),
        }

    gptq = {"quant_method": "gptq", "group_size": GROUP, "sym": True, "desc_act": False}
    gptq |= {"checkpoint_format": "gptq", "lm_head": False, "true_sequential": True}
    modelopt = {"producer": {"name": "modelopt", "version": "0.33.0"}}
    kinds: dict[str, tuple[Convert, dict[str, Any] | None, dict[str, Any] | None]] = {
        "gptq": (lambda _, weight: as_gptq(weight, 4), {**gptq, "bits": 4}, None),
        "gptq-8": (lambda _, weight: as_gptq(weight, 8), {**gptq, "bits": 8}, None),
        "fp8": (fp8, {"quant_method": "fp8", "activation_scheme": "dynamic"}, None),
        "modelopt-fp8": (modelopt_fp8, None, modelopt | described("FP8")),
        "modelopt-nvfp4": (modelopt_nvfp4, None, modelopt | described("NVFP4", group_size=16)),
        "gguf-q8": (lambda _, weight: through_gguf(weight, "Q8_0"), None, None),
        "gguf-q4": (lambda _, weight: through_gguf(weight, "Q4_0"), None, None),
    }
    for kind, (convert, config, quantizer) in kinds.items():
        found = dict(tensors)
        for name, weight in matrices.items():
            del found[f"{name}.weight"]
            found |= {f"{name}.{part}": value for part, value in convert(name, weight).items()}
        write(source, folder / kind, found, config, quantizer)


def fp8(name: str, weight: torch.Tensor) -> Parts:
    """One scale for the matrix, also where vLLM joins it with others."""
    scale = weight.abs().max() / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def described(algorithm: str, **others: Any) -> dict[str, Any]:
    """Return what ModelOpt writes into hf_quant_config.json."""
    kept = {"kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    return {"quantization": {"quant_algo": algorithm, **kept, **others}}


def largest_inputs(source: Path) -> dict[str, float]:
    """Return the largest input of each linear layer, for a text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(source)(TEXT * 8, return_tensors="pt").input_ids
    found: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(
                lambda _, given, name=name: found.__setitem__(name, float(given[0].abs().max()))
            )
    with torch.no_grad():
        model(tokens)
    return found


def as_gptq(weight: torch.Tensor, bits: int) -> Parts:
    """Symmetric numbers with the least error; inputs in words, and zero points stored minus one."""
    middle, columns = 2 ** (bits - 1), weight.shape[1]
    groups = weight.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True) / (middle - 1)
    tried = [(largest * share).half() for share in SHARES]
    rounded = [(groups / each).round().clamp(-middle, middle - 1) for each in tried]
    errors = [(groups - n * s).square().sum(-1) for n, s in zip(rounded, tried, strict=True)]
    best = torch.stack(errors).argmin(0)[None, ..., None]
    scales = torch.stack(tried).take_along_dim(best, 0)[0]
    numbers = torch.stack(rounded).take_along_dim(best, 0)[0] + middle
    zeros = torch.full((columns // GROUP, len(weight)), middle - 1)
    return {
        "qweight": packed(numbers.flatten(1).int(), bits).T.contiguous(),
        "qzeros": packed(zeros, bits),
        "scales": scales[..., 0].T.contiguous(),
        "g_idx": (torch.arange(columns) // GROUP).int(),
    }


def packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack numbers along the last axis, the first in the lowest bits."""
    parts = numbers.numpy().astype(np.uint32).reshape(len(numbers), -1, 32 // bits)
    shifted = parts << (np.arange(32 // bits, dtype=np.uint32) * bits)
    return torch.from_numpy(np.bitwise_or.reduce(shifted, axis=2).view(np.int32))


def through_gguf(weight: torch.Tensor, kind: str) -> Parts:
    """Quantize and dequantize by the package gguf, as a converted GGUF file has it."""
    from gguf import GGMLQuantizationType, dequantize, quantize

    numbers = quantize(weight.numpy(), GGMLQuantizationType[kind])
    back = dequantize(numbers, GGMLQuantizationType[kind])
    return {"weight": torch.from_numpy(back).to(torch.bfloat16)}


def write(
    source: Path,
    folder: Path,
    tensors: dict[str, torch.Tensor],
    quantization: dict[str, Any] | None,
    quantizer: dict[str, Any] | None,
) -> None:
    """Write the weights, and the source's other files."""
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text())
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    if quantizer:
        (folder / "hf_quant_config.json").write_text(json.dumps(quantizer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

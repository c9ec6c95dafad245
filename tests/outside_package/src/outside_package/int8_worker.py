"""The worker of the kind `nearest_int8`, inside the environment `outside-int8`.

Module level: the standard library and modules of this project that need no more.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prepare.events import Progress
from recipes.module_lists import is_listed

LARGEST = 127


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write safetensors and config.json into `output`; the stage adds the tokenizer's files.

    Args:
        spec: checkpoint (folder), quantization (the recipe's keys, `ignore` resolved), group_sizes,
            calibration_file, trust_remote_code, compute_dtype.

    Returns:
        facts of QuantizeResult.
    """
    from safetensors.torch import load_file, save_file

    source = Path(spec["checkpoint"])
    ignore = spec["quantization"]["ignore"]
    files = sorted(source.glob("*.safetensors"))
    rounded: list[str] = []
    left: list[str] = []
    places: dict[str, str] = {}
    for number, file in enumerate(files):
        progress.advance("rounding to nearest", number, len(files), "files")
        tensors = load_file(file)
        for name in [name for name, tensor in tensors.items() if is_matrix(name, tensor)]:
            module = name.removesuffix(".weight")
            if is_listed(module, ignore):
                left.append(module)
                continue
            tensors[name], tensors[f"{name}_scale"] = rounded_to_nearest(tensors[name])
            rounded.append(module)
        save_file(tensors, output / file.name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, file.name))
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": places}
        (output / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = describe([*left, "lm_head"])
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    versions = {name: version(name) for name in ("torch", "safetensors")}
    return {"scheme": "W8A8", "quantized_modules": len(rounded), "versions": versions}


def is_matrix(name: str, tensor: Any) -> bool:
    """Return whether it is a linear layer's weight; an embedding's is not."""
    return name.endswith(".weight") and tensor.ndim == 2 and "embed_tokens" not in name


def rounded_to_nearest(weight: Any) -> tuple[Any, Any]:
    """Return a matrix as 8-bit integers, and the scale of each row."""
    import torch

    wide = weight.float()
    scale = (wide.abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=1e-12)
    scale = scale.to(weight.dtype)
    integers = (wide / scale.float()).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return integers.contiguous(), scale


def describe(ignore: list[str]) -> dict[str, Any]:
    """Return config.json's `quantization_config` in the format of compressed-tensors."""
    integers = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**integers, "strategy": "channel", "dynamic": False},
        "input_activations": {**integers, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": sorted(set(ignore)),
    }

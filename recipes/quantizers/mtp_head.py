"""Copies heads for multi-token prediction (MTP), which transformers neither loads nor saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from recipes.checkpoints.module_kind import module_kind
from recipes.checkpoints.weight_files import INDEX, read_headers, read_json
from recipes.ignored_modules import is_ignored

FILE = "model-mtp.safetensors"


def carry_mtp(
    source: Path, output: Path, layers: int, ignore: list[str], progress: Progress
) -> None:
    """Copy the source's MTP tensors that the saved variant lacks, and name them in its config.

    Args:
        layers: num_hidden_layers; DeepSeek's heads are the layers after the last.
        ignore: the recipe's list; what it has for these modules goes into config.json, so that the
            engine reads them in 16 bits.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    saved = {name: file for file, header in read_headers(output).items() for name in header.tensors}
    places = {
        name: file
        for file, header in read_headers(source).items()
        for name, tensor in header.tensors.items()
        if name not in saved and module_kind(name, len(tensor.shape), layers) == "mtp"
    }
    if not places:
        return
    tensors: dict[str, Any] = {}
    for file in sorted(set(places.values())):
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in places if places[name] == file}
    save_file(tensors, output / FILE, metadata={"format": "pt"})
    files = {name: file.name for name, file in saved.items()} | dict.fromkeys(tensors, FILE)
    total = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (output / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    config = read_json(output / "config.json")
    modules = [name.rpartition(".")[0] for name in tensors]
    words = [word for word in ignore if any(is_ignored(module, [word]) for module in modules)]
    listed = config["quantization_config"].setdefault("ignore", [])
    listed += [word for word in words if word not in listed]
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    progress.note(f"copied {len(tensors)} tensors of the head for multi-token prediction")

"""Worker: FP8 and 4-bit floats without calibration, file by file, by `model_free_ptq`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepare.errors import StageError
from prepare.events import Progress
from prepare.memory import available_bytes
from prepare.worker_protocol import versions_of
from recipes.checkpoints.module_kind import (
    STACKED_EXPERTS,
    WEIGHT,
    is_expert_stack,
    is_head,
    is_linear_weight,
    is_quantizable,
    is_tied,
)
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.weight_files import INDEX, read_headers, read_json
from recipes.module_lists import is_listed
from recipes.quantizers.llm_compressor import LIBRARIES, follow_bars, save_contiguous

CONFIGS = ("config.json", "generation_config.json")
# The library's own estimate for FP8 is 1.5 times a file; NVFP4 needs a little more.
MEMORY_A_WORKER = 2.5
CASTABLE = ("BF16", "F16", "F32")
# transformers' Conv1D layers: no linear layers to llm-compressor, and stored transposed.
TRANSPOSED_ARCHITECTURES = ("gpt2", "openai-gpt", "ctrl", "imagegpt", "decision_transformer")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`, an empty folder.

    The library takes every weight for a linear layer's, so it is to ignore all others. `spec` is as
    in `Quantization.worker`. Returns facts of QuantizeResult.
    """
    source = Path(spec["checkpoint"])
    quantization = spec["quantization"]
    ignore = quantization["ignore"]
    sizes = spec["group_sizes"]
    config = read_json(source / "config.json")
    headers = read_headers(source)
    tensors = {
        name: tensor
        for file_header in headers.values()
        for name, tensor in file_header.tensors.items()
    }
    places = {name: file for file, header in headers.items() for name in header.tensors}
    chosen = {
        name: tensor for name, tensor in tensors.items() if is_quantizable(name, tensor, ignore)
    }
    check_supported(chosen, config, ignore, source)
    check_tie(tensors, places, config, source)
    others = [
        name.removesuffix(WEIGHT)
        for name in tensors
        if name.endswith(WEIGHT) and name not in chosen
    ]
    follow_bars(progress, quantization["kind"])
    write_quantized(source, list(headers), quantization["scheme"], others, output)
    kept = kept_layers(tensors, ignore)
    if is_tied(config) and "lm_head" not in kept:
        kept.append("lm_head")
    write_ignore_list(output / "config.json", kept)
    return {
        "scheme": quantization["scheme"],
        "quantized_modules": len(chosen),
        "shards": len(headers),
        "source_bytes": sum(file.stat().st_size for file in headers),
        "versions": versions_of(*LIBRARIES),
        **({"group_size": sizes[0]} if sizes else {}),
    }


def write_quantized(
    source: Path, files: list[Path], scheme: str, ignore: list[str], output: Path
) -> None:
    """Quantize the weight files by the library, as many concurrently as fit into memory."""
    from llmcompressor.entrypoints import model_free
    from llmcompressor.entrypoints.model_free import converter

    # It would take the first axis after the experts for rows, and halve it for gate and up.
    converter.split_fused_moe_experts = lambda tensors: tensors
    save_contiguous(model_free)
    largest = max(file.stat().st_size for file in files)
    fitting = int(available_bytes() / (MEMORY_A_WORKER * largest))
    with tempfile.TemporaryDirectory() as needed:
        # The library copies each other file of its input, pickled weights too.
        for file in (*files, *(source / name for name in (INDEX, *CONFIGS))):
            if file.exists():
                (Path(needed) / file.name).symlink_to(file)
        model_free.model_free_ptq(
            needed,
            output,
            scheme=scheme,
            ignore=ignore,
            max_workers=max(1, min(len(os.sched_getaffinity(0)), fitting)),
        )


def write_ignore_list(file: Path, kept: list[str]) -> None:
    """Write the modules that stay unquantized into config.json, for the engine."""
    saved = read_json(file)
    saved["quantization_config"]["ignore"] = kept
    file.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")


def check_supported(
    chosen: Mapping[str, TensorEntry], config: dict[str, Any], ignore: list[str], source: Path
) -> None:
    """Refuse transposed or quantized layers, a tied lm_head, or none to quantize.

    `chosen` are the tensors to quantize.
    """
    architecture = config.get("model_type")
    place = source / "config.json"
    if architecture in TRANSPOSED_ARCHITECTURES:
        raise StageError(
            f"'{architecture}' stores its layers transposed: there is nothing to quantize",
            where=f"{place}, key model_type",
            hint="none of llm-compressor's recipes quantizes these layers; use the baseline",
        )
    for name, tensor in chosen.items():
        if tensor.dtype not in CASTABLE or not tensor.elements:
            raise StageError(
                f"'{name}' is stored as {tensor.dtype} {list(tensor.shape)}, and only matrices of "
                f"{', '.join(CASTABLE)} are cast",
                where=str(source),
                hint="start from the unquantized checkpoint",
            )
    if is_tied(config) and not is_listed("lm_head", ignore):
        raise StageError(
            "lm_head is the embedding, and cannot be quantized alone",
            where=f"{place}, key tie_word_embeddings",
            hint="put lm_head into the recipe's quantization.ignore",
        )
    if not chosen:
        raise StageError(
            "no tensor of the checkpoint is to be quantized",
            where=str(source),
            hint="the recipe's quantization.ignore means all linear layers; shorten it",
        )


def check_tie(
    tensors: Mapping[str, TensorEntry],
    places: Mapping[str, Path],
    config: dict[str, Any],
    source: Path,
) -> None:
    """Check that a tied model's lm_head repeats the embedding."""
    from safetensors import safe_open

    head = next(filter(is_head, tensors), None)
    if head is None or not is_tied(config):
        return
    for table in tensors:
        if not table.endswith("embed_tokens.weight") or tensors[table].shape != tensors[head].shape:
            continue
        read = []
        for name in (head, table):
            with safe_open(places[name], framework="pt") as opened:
                read.append(opened.get_tensor(name))
        if not read[0].equal(read[1]):
            key = "tie_word_embeddings"
            key = key if key in config else f"text_config.{key}"
            raise StageError(
                f"'{head}' is not the embedding that config.json says it is",
                where=f"{source / 'config.json'}, key {key}",
                hint="where the stored head is the model's own, set tie_word_embeddings to false "
                "in config.json",
            )


def kept_layers(tensors: Mapping[str, TensorEntry], ignore: list[str]) -> list[str]:
    """Return modules that stay unquantized, for the engine.

    Experts in stacks stay: their axes differ by architecture.
    """
    kept = [
        name.removesuffix(WEIGHT)
        for name, tensor in tensors.items()
        if is_linear_weight(name, tensor) and not is_quantizable(name, tensor, ignore)
    ]
    stacked = any(is_expert_stack(name, len(tensor.shape)) for name, tensor in tensors.items())
    return [*kept, STACKED_EXPERTS] if stacked else kept

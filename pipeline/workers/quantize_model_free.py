"""Worker: FP8 and 4-bit floats without calibration, file by file, by `model_free_ptq`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pipeline.checkpoint.safetensors_header import SafetensorsHeader
from pipeline.checkpoint.weight_files import INDEX, read_headers, read_json
from pipeline.core.errors import StageError
from pipeline.core.events import Progress
from pipeline.core.memory import available_bytes
from pipeline.inspection.linear_layers import WEIGHT, is_quantizable, is_tied
from pipeline.workers.protocol import versions_of
from pipeline.workers.quantize_llm_compressor import LIBRARIES, follow_bars
from pipeline.workers.streamed_tensors import check_supported, kept_layers, tied_pair

CONFIGS = ("config.json", "generation_config.json")
# The library's own estimate for FP8 is 1.5 times a file; NVFP4 needs a little more.
MEMORY_A_WORKER = 2.5


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`, an empty folder.

    The library takes every weight for a linear layer's, so all others are on its list of what to
    ignore. The variant's config names only the linear layers among them.

    Args:
        spec: as in `Quantization.worker`.

    Returns:
        facts of QuantizeResult.

    Raises:
        StageError: names and shapes do not determine how to quantize the checkpoint.
    """
    source = Path(spec["checkpoint"])
    quantization = spec["quantization"]
    ignore, sizes = quantization["ignore"], spec["group_sizes"]
    config = read_json(source / "config.json")
    headers = read_headers(source)
    tensors = {name: tensor for each in headers.values() for name, tensor in each.tensors.items()}
    check_supported(tensors, config, ignore, source)
    check_tie(source, headers, config)
    chosen = {name for name, tensor in tensors.items() if is_quantizable(name, tensor, ignore)}
    others = [
        name.removesuffix(WEIGHT)
        for name in tensors
        if name.endswith(WEIGHT) and name not in chosen
    ]
    from llmcompressor.entrypoints import model_free

    save_contiguous(model_free)
    follow_bars(progress, quantization["kind"])
    with tempfile.TemporaryDirectory() as needed:
        # The library copies each other file of its input, pickled weights too.
        for file in (*headers, *(source / name for name in (INDEX, *CONFIGS))):
            if file.exists():
                (Path(needed) / file.name).symlink_to(file)
        model_free.model_free_ptq(
            needed,
            output,
            scheme=quantization["scheme"],
            ignore=others,
            max_workers=worker_count(max(file.stat().st_size for file in headers)),
        )
    kept = kept_layers(tensors, ignore)
    heads = ["lm_head"] if is_tied(config) and "lm_head" not in kept else []
    name_kept_layers(output / "config.json", kept + heads)
    return {
        "scheme": quantization["scheme"],
        "quantized_modules": len(chosen),
        "shards": len(headers),
        "source_bytes": sum(file.stat().st_size for file in headers),
        "versions": versions_of(*LIBRARIES),
        **({"group_size": sizes[0]} if sizes else {}),
    }


def check_tie(source: Path, headers: dict[Path, SafetensorsHeader], config: dict[str, Any]) -> None:
    """Check that a stored lm_head of a tied model repeats the embedding.

    Raises:
        StageError: it differs, so weights and config.json disagree.
    """
    from safetensors import safe_open

    places = {name: file for file, header in headers.items() for name in header.tensors}
    pair = tied_pair({n: t for h in headers.values() for n, t in h.tensors.items()}, config)
    if pair is None:
        return
    read = []
    for name in pair:
        with safe_open(places[name], framework="pt") as opened:
            read.append(opened.get_tensor(name))
    if not read[0].equal(read[1]):
        key = "tie_word_embeddings"
        raise StageError(
            f"'{pair[0]}' is not the embedding that config.json says it is",
            where=f"{source / 'config.json'}, key {key if key in config else f'text_config.{key}'}",
            hint="where the stored head is the model's own, set tie_word_embeddings to false in "
            "config.json",
        )


def save_contiguous(library: Any) -> None:
    """Make the library save matrices whose last block is cut.

    llm-compressor 0.14 passes views of the padded matrix, which safetensors refuses.
    """
    save = library.save_file
    library.save_file = lambda tensors, path: save(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path
    )


def worker_count(file_bytes: int) -> int:
    """Return how many files of at most this size fit into memory and cores at a time."""
    fitting = int(available_bytes() / (MEMORY_A_WORKER * file_bytes))
    return max(1, min(len(os.sched_getaffinity(0)), fitting))


def name_kept_layers(file: Path, kept: list[str]) -> None:
    """Replace the ignore list of a variant's config."""
    config = read_json(file)
    config["quantization_config"]["ignore"] = kept
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

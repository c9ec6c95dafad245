"""Quantizes a checkpoint to FP8 as a stream: plan by the headers, move the bytes, write config."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.checkpoint.safetensors_header import SafetensorsHeader
from pipeline.checkpoint.weight_files import read_headers, read_json
from pipeline.core.errors import StageError, UsageError
from pipeline.core.events import Progress
from pipeline.inspection.linear_layers import is_quantizable, is_tied
from pipeline.workers.fp8_stream import resume
from pipeline.workers.fp8_stream.copy_pipeline import CopyPipeline
from pipeline.workers.fp8_stream.layout import SCHEMES, ShardPlan, plan_shard
from pipeline.workers.fp8_stream.same_bytes import has_same_bytes
from pipeline.workers.fp8_stream.variant_config import (
    quantization_config,
    write_config,
    write_index,
)
from pipeline.workers.protocol import versions_of
from pipeline.workers.streamed_tensors import (
    check_supported,
    kept_layers,
    tied_pair,
)

LIBRARIES = ("compressed-tensors", "torch")
"""Those whose change can change a number."""
GENERATION_CONFIG = "generation_config.json"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Worker: write the quantized checkpoint; see :func:`stream_fp8`."""
    quantization, sizes = spec["quantization"], spec["group_sizes"]
    facts = stream_fp8(
        Path(spec["checkpoint"]),
        output,
        quantization["scheme"],
        quantization["ignore"],
        progress,
    )
    groups = {"group_size": sizes[0]} if sizes else {}
    return {**facts, **groups, "versions": versions_of("llmcompressor", "transformers", *LIBRARIES)}


def stream_fp8(
    source: Path, output: Path, scheme: str, ignore: list[str], progress: Progress
) -> dict[str, Any]:
    """Write the FP8 weights of a checkpoint, with index, config.json and generation_config.json.

    Every output file is made from the source file of its name. A call continues in the output
    folder of a killed call: it keeps the finished files.

    Args:
        output: existing folder; weight files of other work in it are removed.
        scheme: FP8_DYNAMIC or FP8_BLOCK, presets of compressed-tensors.
        ignore: modules to leave unchanged: names, shell patterns or `re:` expressions.

    Returns:
        scheme, quantized_modules, shards (files), shards_reused (finished by an earlier call),
        source_bytes, device.

    Raises:
        CheckpointError: the source is damaged.
        StageError: the source is nothing that a stream can quantize; the tensor is named.
        UsageError: an unknown scheme.
    """
    if scheme not in SCHEMES:
        raise UsageError(f"'{scheme}' cannot be streamed", hint=f"these can: {', '.join(SCHEMES)}")
    config = read_json(source / "config.json")
    headers = read_headers(source)
    tensors = {name: tensor for h in headers.values() for name, tensor in h.tensors.items()}
    check_supported(tensors, config, ignore, source)
    left_out = resolve_tie(source, headers, config)
    plans = plan(headers, scheme, ignore, left_out)
    waiting = resume.take_up(output, plans, scheme, versions_of(*LIBRARIES))
    if len(waiting) < len(plans):
        progress.note(f"{len(plans) - len(waiting)} of {len(plans)} weight files are there already")
    device = choose_device()
    CopyPipeline(waiting, output, scheme, device, progress).run()
    write_index(output, plans)
    kept = [name for name in kept_layers(tensors, ignore) if f"{name}.weight" not in left_out]
    heads = ["lm_head"] if is_tied(config) and "lm_head" not in kept else []
    write_config(output, config, quantization_config(scheme, kept + heads))
    if (source / GENERATION_CONFIG).is_file():
        shutil.copyfile(source / GENERATION_CONFIG, output / GENERATION_CONFIG)
    resume.close(output)
    return {
        "scheme": scheme,
        "quantized_modules": sum(plan.quantized for plan in plans),
        "shards": len(plans),
        "shards_reused": len(plans) - len(waiting),
        "source_bytes": sum(plan.source_bytes for plan in plans),
        "device": device,
    }


def plan(
    headers: dict[Path, SafetensorsHeader], scheme: str, ignore: list[str], left_out: list[str]
) -> list[ShardPlan]:
    """Return the output files."""
    plans = []
    for file, header in headers.items():
        chosen = {n for n, tensor in header.tensors.items() if is_quantizable(n, tensor, ignore)}
        made = plan_shard(file, header, scheme, chosen, left_out)
        if made is not None:
            plans.append(made)
    return plans


def resolve_tie(
    source: Path, headers: dict[Path, SafetensorsHeader], config: dict[str, Any]
) -> list[str]:
    """Return tensors that the output omits: a stored lm_head that only repeats the embedding.

    Raises:
        StageError: it differs from the embedding, so weights and config.json disagree.
    """
    tensors = {name: tensor for h in headers.values() for name, tensor in h.tensors.items()}
    pair = tied_pair(tensors, config)
    if pair is None:
        return []
    head, embedding = pair
    places = {name: (file, h) for file, h in headers.items() for name in h.tensors if name in pair}
    if has_same_bytes(places[head], head, places[embedding], embedding):
        return [head]
    key = "tie_word_embeddings"
    raise StageError(
        f"'{head}' is not the embedding that config.json says it is",
        where=f"{source / 'config.json'}, key {key if key in config else f'text_config.{key}'}",
        hint="where the stored head is the model's own, set tie_word_embeddings to false in "
        "config.json",
    )


def choose_device() -> str:
    """Return torch's accelerator, or "cpu"."""
    import torch

    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return "cpu"

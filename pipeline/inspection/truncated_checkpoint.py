"""Checkpoints with two of their layers, for a dry run; without torch.

The tensors of two layers, embeddings, norms and output head are copied byte for byte into one file,
and config.json is adapted. If config.json lists several kinds of layers (dense and experts, full
and sliding attention), the two layers are of different kinds.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.checkpoint.folder import SMALL_FILES, matches
from pipeline.checkpoint.safetensors_header import TensorEntry, header_bytes, read_header
from pipeline.checkpoint.weight_files import INDEX, read_json, weight_files
from pipeline.core.errors import CheckpointError
from pipeline.inspection.model_shape import LAYERS, read_positive_int, text_level
from pipeline.inspection.module_kind import VISION

RETAINED_LAYERS = 2
WEIGHTS = "model.safetensors"
COPY_BYTES = 16 * 2**20

# Layers differ by a period instead of a list: keep the first two.
PERIODS = (
    "decoder_sparse_step",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "moe_layer_interval",
    "expert_layer_period",
    "attn_layer_period",
    "full_attention_interval",
)
FIRST_DENSE = "first_k_dense_replace"  # number of dense layers before those with experts
DENSE_ONES = "mlp_only_layers"  # indexes of dense layers
EXTRA_LAYERS = ("num_nextn_predict_layers", "num_kv_shared_layers")
# Lists that are unrelated to layers.
NOT_BY_LAYER = ("architectures", "eos_token_id", "bos_token_id", "pad_token_id")

# transformers' names of a decoder's layers; `h` in GPT-2 and Falcon, `blocks` in MPT.
_LAYER = re.compile(r"(?P<before>^|.*?\.)(?P<list>layers|h|blocks)\.(?P<number>\d+)\.(?P<rest>.+)")


@dataclass(frozen=True)
class TruncatedCheckpoint:
    """Facts about a truncated checkpoint."""

    layers: tuple[int, ...]  # indexes of the retained layers in the source
    tensors: int  # number of tensors
    weights_bytes: int  # of the new weight file


@dataclass(frozen=True)
class _TensorLocation:
    """Position of a tensor's bytes in the source."""

    file: Path
    offset: int
    tensor: TensorEntry


def cut_checkpoint(source: Path, target: Path) -> TruncatedCheckpoint:
    """Write the checkpoint in `source`, truncated to two layers, to the new folder `target`.

    A tied head that is stored twice stays stored twice. A vision tower is copied completely.

    Raises:
        CheckpointError: files are missing or damaged, or tensor names do not contain their layer.
    """
    config = read_json(source / "config.json")
    layers = choose_layers(config, str(source / "config.json"))
    places = _locate_tensors(source)
    kept = retained_tensors(list(places), layers, layer_count(config, str(source / "config.json")))
    if not any(_LAYER.fullmatch(name) for name in kept):
        raise CheckpointError(
            f"tensor names do not contain their layer, such as '{next(iter(places))}'",
            where=str(source),
            hint="run without the dry run: --no-dry-run",
        )
    target.mkdir()
    (target / "config.json").write_text(json.dumps(cut_config(config, layers), indent=2))
    for file in source.iterdir():
        if matches(file.name, SMALL_FILES) and file.name not in ("config.json", INDEX):
            shutil.copyfile(file, target / file.name)
    weights_bytes = _write(target / WEIGHTS, {new: places[old] for old, new in kept.items()})
    return TruncatedCheckpoint(layers, len(kept), weights_bytes)


def layer_count(config: dict[str, Any], where: str) -> int:
    """Return the decoder's number of layers; raise CheckpointError if it is missing."""
    count = read_positive_int(text_level(config), LAYERS, where)
    if count is None:
        raise CheckpointError(
            "config.json lacks the number of layers",
            where=f"{where}, key {LAYERS[0]}",
            hint="run without the dry run: --no-dry-run",
        )
    return count


def choose_layers(config: dict[str, Any], where: str) -> tuple[int, ...]:
    """Return the first layer and the first of another kind, or the first two."""
    count = layer_count(config, where)
    level = text_level(config)
    first = tuple(range(min(RETAINED_LAYERS, count)))
    if any(type(level.get(key)) is int and level[key] > 1 for key in _periods(level)):
        return first
    kinds = [_kind(level, layer, count) for layer in range(count)]
    other = next((n for n, kind in enumerate(kinds) if kind != kinds[0]), None)
    return first if other is None else (0, other)


def cut_config(config: dict[str, Any], layers: tuple[int, ...]) -> dict[str, Any]:
    """Return a config.json for these layers of the source."""
    inner = config.get("text_config")
    # A multimodal config nests the decoder's values, separate from the vision tower's.
    levels = [config, *([inner] if isinstance(inner, dict) else [])]
    count = layer_count(config, "config.json")
    cut = [_cut_level(level, layers, count) for level in levels]
    return {**cut[0], "text_config": cut[1]} if len(cut) > 1 else cut[0]


def retained_tensors(names: list[str], layers: tuple[int, ...], count: int) -> dict[str, str]:
    """Return the tensors to retain, with their new names.

    Args:
        count: number of the source's layers; later ones are for multi-token prediction.
    """
    kept = {}
    for name in names:
        parts = name.split(".")
        found = _LAYER.fullmatch(name)
        if any(part.startswith(VISION) for part in parts):
            kept[name] = name
        elif "mtp" in parts or (found and int(found["number"]) >= count):
            continue
        elif found is None:
            kept[name] = name
        elif int(found["number"]) in layers:
            number = layers.index(int(found["number"]))
            kept[name] = f"{found['before']}{found['list']}.{number}.{found['rest']}"
    return kept


def _periods(level: dict[str, Any]) -> list[str]:
    overruled = ("full_attention_interval", "attn_layer_period") if "layer_types" in level else ()
    return [key for key in PERIODS if key not in overruled]


def _kind(level: dict[str, Any], layer: int, count: int) -> tuple[Any, ...]:
    return (
        *(value[layer] for value in _lists(level, count).values()),
        layer < _first_dense(level),
        layer in (level.get(DENSE_ONES) or ()),
    )


def _lists(level: dict[str, Any], count: int) -> dict[str, list[Any] | str]:
    return {
        key: value
        for key, value in level.items()
        if key not in (*NOT_BY_LAYER, DENSE_ONES)
        and (isinstance(value, list) or (isinstance(value, str) and key.endswith("pattern")))
        and len(value) == count
    }


def _first_dense(level: dict[str, Any]) -> int:
    value = level.get(FIRST_DENSE)
    return value if type(value) is int else 0


def _cut_level(level: dict[str, Any], layers: tuple[int, ...], count: int) -> dict[str, Any]:
    cut = dict(level)
    for key in LAYERS:
        if type(level.get(key)) is int:
            cut[key] = len(layers)
    for key, value in _lists(level, count).items():
        kept = [value[layer] for layer in layers]
        cut[key] = "".join(kept) if isinstance(value, str) else kept
    if level.get(FIRST_DENSE):
        cut[FIRST_DENSE] = sum(layer < _first_dense(level) for layer in layers)
    if level.get(DENSE_ONES):
        cut[DENSE_ONES] = [n for n, layer in enumerate(layers) if layer in level[DENSE_ONES]]
    for key in EXTRA_LAYERS:
        if level.get(key):
            cut[key] = 0
    return cut


def _locate_tensors(folder: Path) -> dict[str, _TensorLocation]:
    places = {}
    for file in weight_files(folder):
        header = read_header(file)
        for name, tensor in header.tensors.items():
            places[name] = _TensorLocation(file, header.data_start + tensor.begin, tensor)
    return places


def _write(file: Path, tensors: dict[str, _TensorLocation]) -> int:
    entries = {}
    position = 0
    for name, place in tensors.items():
        end = position + place.tensor.size
        entries[name] = (place.tensor.dtype, place.tensor.shape, (position, end))
        position = end
    header = header_bytes(entries)
    with file.open("wb") as output:
        output.write(header)
        for place in tensors.values():
            with place.file.open("rb") as source:
                source.seek(place.offset)
                _copy(source, output, place.tensor.size, place.file)
    return len(header) + position


def _copy(source: BinaryIO, output: BinaryIO, count: int, file: Path) -> None:
    left = count
    while left:
        block = source.read(min(left, COPY_BYTES))
        if not block:
            raise CheckpointError("the weights end too early", where=str(file))
        output.write(block)
        left -= len(block)

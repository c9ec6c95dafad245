"""Accounting of every tensor of source and variant, from headers alone.

A source tensor is quantized, kept, or merged (a tied head that equals the embedding). The variant
may have scales of the KV cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.errors import VerificationError
from recipes.checkpoints.module_kind import is_head
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.weight_files import INDEX, read_headers, read_index
from recipes.weight_format import WeightFormat
from recipes.weights.layouts import FLOATING, SCALE_TYPES, layer_parts

KEY_LAYERS = ("k_proj.weight", "qkv_proj.weight", "kv_b_proj.weight")
CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".prob_scale")  # on any module
MAX_EXTRA_BYTES = 2**22  # of such a scale or a bias of zeros, which is read as a whole
FREQUENCIES = ".rotary_emb.inv_freq"
BUFFERS = (FREQUENCIES, ".masked_bias", ".position_ids")
MASKS = (".attn.bias", ".attention.bias")  # of GPT-2 and GPT-NeoX, not their biases of 1 dimension
EMBEDDING = re.compile(r".*embed_tokens\.weight|.*\.wte\.weight|.*embed_in\.weight")


@dataclass(frozen=True)
class StoredTensor(TensorEntry):
    """A tensor in a file, from byte `begin` to `end`."""

    name: str
    path: Path


@dataclass(frozen=True)
class TensorFiles:
    """All tensors of a checkpoint folder by name."""

    folder: Path
    tensors: dict[str, StoredTensor]


def open_folder(folder: Path) -> TensorFiles:
    """Read headers, and check that index and files agree."""
    tensors: dict[str, StoredTensor] = {}
    index = folder / INDEX
    named = read_index(index) if index.exists() else None
    for path, header in read_headers(folder).items():
        for name, entry in header.tensors.items():
            if name in tensors or (named is not None and named.get(name) != path.name):
                raise VerificationError(
                    f"'{name}' is in {path.name}, and also in another file"
                    if name in tensors
                    else f"'{name}' is in {path.name}, but not according to the index",
                    where=str(index if named else folder),
                )
            begin = header.data_start + entry.begin
            end = header.data_start + entry.end
            tensors[name] = StoredTensor(entry.dtype, entry.shape, begin, end, name, path)
    return TensorFiles(folder, tensors)


@dataclass(frozen=True)
class WeightComparison:
    """Tensors of a source and a variant whose numbers must fit, as plain data for the worker.

    `layers` are quantized modules with their format, `kept` unquantized tensors of both. `merged`
    heads must equal the embedding: (side, name, embedding of the source). `scales` are the
    variant's of a KV cache. `rescaled`: columns were scaled, and the layers before them by the
    inverse; None if the norms decide. `rounds`: an unquantized tensor of another type may be
    rounded.
    """

    source: str
    variant: str
    layers: dict[str, WeightFormat] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    merged: list[tuple[str, str, str]] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    rescaled: bool | None = False
    rounds: bool = False

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> WeightComparison:
        """Parse a worker's `dataclasses.asdict`."""
        layers = plain["layers"].items()
        forms = {
            module: WeightFormat(**{**form, "block": form["block"] and tuple(form["block"])})
            for module, form in layers
        }
        return cls(**{**plain, "layers": forms})


def account(
    source: TensorFiles,
    variant: TensorFiles,
    form_of: Callable[[str], WeightFormat],
    chosen: Callable[[str, TensorEntry], bool],
    *,
    tied: bool,
    kv_scales: bool | None,
    rescaled: bool | None,
    rounds: bool = False,
) -> WeightComparison:
    """Classify every tensor; raise VerificationError for missing or unexpected ones.

    `form_of` is a quantized module's format; `chosen` tensors must be quantized. With `tied`, the
    output head need not be stored. `kv_scales` requires scales of the KV cache; None also accepts
    other programs' scales, biases of zeros, and rotary frequencies.
    """
    comparison = WeightComparison(
        str(source.folder), str(variant.folder), rescaled=rescaled, rounds=rounds
    )
    left = dict(variant.tensors)
    embedding = next(filter(EMBEDDING.fullmatch, source.tensors), None)
    for name, tensor in source.tensors.items():
        head = tied and is_head(name)
        if chosen(name, tensor) and not (head and name not in variant.tensors):
            module = name.removesuffix(".weight")
            comparison.layers[module] = form = form_of(module)
            _take_parts(tensor, form, variant, left)
        elif name in left:
            _check_unquantized(tensor, left[name])
            comparison.kept.append(name)
            del left[name]
        elif _is_buffer(tensor):
            continue
        elif head:
            comparison.merged.extend([("source", name, embedding)] if embedding else [])
        else:
            raise _missing(tensor, variant)
    if not comparison.layers:
        raise VerificationError("nothing was quantized", where=str(variant.folder))
    if kv_scales is None:
        small = [name for name, tensor in left.items() if tensor.size <= MAX_EXTRA_BYTES]
        comparison.scales.extend(name for name in small if name.endswith(CACHE_SCALES))
        left = {name: tensor for name, tensor in left.items() if not _is_empty(tensor)}
    elif kv_scales:
        comparison.scales.extend(_kv_scales(source, variant))
    if tied and embedding is not None:
        comparison.merged.extend(("variant", name, embedding) for name in filter(is_head, left))
    for name in (*comparison.scales, *(name for _, name, _ in comparison.merged)):
        left.pop(name, None)
    for name, stranger in left.items():
        raise VerificationError(
            f"'{name}' is unexpected: neither the source nor the recipe has it",
            where=str(stranger.path),
        )
    return comparison


def _is_buffer(tensor: StoredTensor) -> bool:
    """Return whether loaders compute the tensor themselves: a mask, positions or frequencies."""
    is_mask = tensor.name.endswith(MASKS) and len(tensor.shape) == 4
    return is_mask or tensor.name.endswith(BUFFERS)


def _is_empty(tensor: StoredTensor) -> bool:
    """Return whether it is frequencies, or zeros of GPTQ."""
    if tensor.name.endswith(FREQUENCIES):
        return True
    is_bias = tensor.name.endswith(".bias") and tensor.dtype in FLOATING
    if not is_bias or tensor.size > MAX_EXTRA_BYTES:
        return False
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin)
        return not any(file.read(tensor.size))


def _take_parts(
    source: StoredTensor, form: WeightFormat, variant: TensorFiles, left: dict[str, StoredTensor]
) -> None:
    module = source.name.removesuffix(".weight")
    rows, columns = source.shape
    for part in layer_parts(form, rows, columns):
        name = f"{module}.{part.suffix}"
        if name not in left:
            whole = left.get(source.name)
            raise VerificationError(
                f"the tensor '{name}' is missing: this layer was not quantized"
                + (f", '{source.name}' is there as {whole.dtype}" if whole else ""),
                where=str(variant.folder),
                hint="the recipe's ignore list does not fit the model's layers, or the file "
                "is missing; see the worker.log",
            )
        tensor = left.pop(name)
        _check_type(tensor, part.dtypes)
        if part.shapes and tensor.shape not in part.shapes:
            raise VerificationError(
                f"'{name}' has shape {tensor.shape} for a layer of {rows} x {columns}; "
                f"{part.shapes[0]} is right",
                where=str(tensor.path),
            )


def _check_type(tensor: StoredTensor, dtypes: tuple[str, ...], hint: str = "") -> None:
    if tensor.dtype not in dtypes:
        raise VerificationError(
            f"'{tensor.name}' is stored as {tensor.dtype}, not as {' or '.join(dtypes)}",
            where=str(tensor.path),
            hint=hint,
        )


def _check_unquantized(source: StoredTensor, variant: StoredTensor) -> None:
    if variant.shape != source.shape:
        raise VerificationError(
            f"'{source.name}' has shape {variant.shape}, the source's {source.shape}",
            where=str(variant.path),
        )
    _check_type(
        variant,
        (source.dtype, *FLOATING),
        "the recipe does not quantize it: its ignore list requires full module names, or "
        "expressions after 're:'",
    )


def _missing(tensor: StoredTensor, variant: TensorFiles) -> VerificationError:
    expert = re.compile(re.escape(tensor.name.rpartition(".")[0]) + r"\.\d+\.")
    if len(tensor.shape) == 3 and any(expert.match(name) for name in variant.tensors):
        return VerificationError(
            f"'{tensor.name}' has the fused matrices of all experts, and the variant "
            "stores them separately: verification cannot compare the two",
            where=str(tensor.path),
            hint="use a checkpoint with a tensor for each expert, or a recipe that ignores them",
        )
    return VerificationError(
        f"the source's tensor '{tensor.name}' is missing", where=str(variant.folder)
    )


def _kv_scales(source: TensorFiles, variant: TensorFiles) -> list[str]:
    """Return the variant's scales, one of each kind for every layer."""
    scales = []
    for layer in source.tensors:
        if not layer.endswith(tuple(f".{key_layer}" for key_layer in KEY_LAYERS)):
            continue
        attention = layer.rsplit(".", 2)[0]
        for name in (f"{attention}.k_scale", f"{attention}.v_scale"):
            if name not in variant.tensors:
                raise VerificationError(
                    f"the scale '{name}' of the KV cache is missing",
                    where=str(variant.folder),
                    hint="quantize again; see the worker.log",
                )
            _check_type(variant.tensors[name], SCALE_TYPES)
            scales.append(name)
    if not scales:
        raise VerificationError(
            "the recipe requires scales of the KV cache, and the source has no key layer",
            where=str(source.folder),
            hint=f"known: {', '.join(KEY_LAYERS)}; use a recipe without kv_cache_scales",
        )
    return scales

"""Accounting of every tensor of source and variant, from headers alone.

A source tensor is quantized (others replace it), unquantized, or merged (a tied head that equals
the embedding). A variant tensor is one of these, or a scale of the KV cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.core.errors import VerificationError
from pipeline.inspection.linear_layers import is_head
from pipeline.verification.stored_parts import FLOATING, SCALE_TYPES, StoredPart, layer_parts
from pipeline.verification.tensor_files import StoredTensor, TensorFiles
from pipeline.verification.weight_format import FormOf
from recipes.weight_format import WeightFormat

KEY_LAYERS = ("k_proj.weight", "qkv_proj.weight", "kv_b_proj.weight")
KV_SCALES = ("k_scale", "v_scale")
CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".prob_scale")  # on any module
MAX_EXTRA_BYTES = 2**22  # of such a scale or a bias of zeros, which is read as a whole
FREQUENCIES = ".rotary_emb.inv_freq"
EMBEDDING = re.compile(r".*embed_tokens\.weight|.*\.wte\.weight|.*embed_in\.weight")


@dataclass
class TensorAccounting:
    """Classification of all tensors."""

    # Source tensors that others replace.
    quantized: list[StoredTensor] = field(default_factory=list)
    # Unquantized source tensors with those of the same name in the variant.
    kept: list[tuple[StoredTensor, StoredTensor]] = field(default_factory=list)
    # Heads of either side with the embedding that they must equal.
    merged: list[tuple[StoredTensor, StoredTensor]] = field(default_factory=list)
    kv_scales: list[StoredTensor] = field(default_factory=list)  # scales of the KV cache


def account(
    source: TensorFiles,
    variant: TensorFiles,
    form_of: FormOf,
    chosen: Callable[[str, TensorEntry], bool],
    *,
    tied: bool,
    kv_scales: bool | None,
) -> TensorAccounting:
    """Classify every tensor; raise VerificationError for missing or unexpected ones.

    Args:
        form_of: format of a module that the variant has quantized.
        chosen: whether the variant must have a source's tensor quantized.
        tied: the output head is the embedding, and need not be stored.
        kv_scales: the recipe requires scales of the KV cache; None accepts what another program
            stores besides: such scales, biases of zeros, and rotary frequencies.
    """
    found = TensorAccounting()
    left = dict(variant.tensors)
    for name, tensor in source.tensors.items():
        header = TensorEntry(tensor.dtype, tensor.shape, 0, tensor.size)
        head = tied and is_head(name)
        if chosen(name, header) and not (head and name not in variant.tensors):
            form = form_of(name.removesuffix(".weight"))
            _take_parts(tensor, form, variant, left)
            found.quantized.append(tensor)
        elif name in left:
            check_unquantized(tensor, left[name])
            found.kept.append((tensor, left.pop(name)))
        elif kv_scales is None and name.endswith(FREQUENCIES):
            continue
        elif head:
            embedding = _embedding(source)
            found.merged += [(tensor, embedding)] if embedding else []
        else:
            raise _missing(tensor, variant)
    if not found.quantized:
        raise VerificationError("nothing was quantized", where=str(variant.folder))
    if kv_scales is None:
        small = [name for name, tensor in left.items() if tensor.size <= MAX_EXTRA_BYTES]
        found.kv_scales = [left.pop(name) for name in small if name.endswith(CACHE_SCALES)]
        for name in [name for name, tensor in left.items() if _is_empty(tensor)]:
            del left[name]
    elif kv_scales:
        found.kv_scales = _take_kv_scales(source, variant, left)
    embedding = _embedding(source)
    if tied and embedding is not None:
        found.merged += [(left.pop(name), embedding) for name in filter(is_head, list(left))]
    for name, stranger in left.items():
        raise VerificationError(
            f"'{name}' is unexpected: neither the source nor the recipe has it",
            where=str(stranger.path),
        )
    return found


def _is_empty(tensor: StoredTensor) -> bool:
    """Return whether it is no part of the model: frequencies, or the zeros that GPTQ stores."""
    if tensor.name.endswith(FREQUENCIES):
        return True
    is_bias = tensor.name.endswith(".bias") and tensor.dtype in FLOATING
    return is_bias and tensor.size <= MAX_EXTRA_BYTES and tensor.is_zero()


def _embedding(source: TensorFiles) -> StoredTensor | None:
    return next((t for name, t in source.tensors.items() if EMBEDDING.fullmatch(name)), None)


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
        _check_part(left.pop(name), part, source)


def _check_part(tensor: StoredTensor, part: StoredPart, source: StoredTensor) -> None:
    if tensor.dtype not in part.dtypes:
        raise VerificationError(
            f"'{tensor.name}' is stored as {tensor.dtype}, not as {' or '.join(part.dtypes)}",
            where=str(tensor.path),
        )
    if part.shapes and tensor.shape not in part.shapes:
        raise VerificationError(
            f"'{tensor.name}' has shape {tensor.shape} for a layer of "
            f"{source.shape[0]} x {source.shape[1]}; {part.shapes[0]} is right",
            where=str(tensor.path),
        )


def check_unquantized(source: StoredTensor, variant: StoredTensor) -> None:
    """Raise VerificationError if an ignored tensor has another shape or a narrow type."""
    if variant.shape != source.shape:
        raise VerificationError(
            f"'{source.name}' has shape {variant.shape}, the source's {source.shape}",
            where=str(variant.path),
        )
    if variant.dtype not in (source.dtype, *FLOATING):
        raise VerificationError(
            f"'{source.name}' is stored as {variant.dtype}, and the recipe does not quantize it",
            where=str(variant.path),
            hint="the recipe's ignore list requires full module names, or expressions after 're:'",
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


def _take_kv_scales(
    source: TensorFiles, variant: TensorFiles, left: dict[str, StoredTensor]
) -> list[StoredTensor]:
    attention = [
        name.removesuffix(layer)
        for name in source.tensors
        for layer in KEY_LAYERS
        if name.endswith(f".{layer}")
    ]
    found = []
    for module in attention:
        for suffix in KV_SCALES:
            tensor = left.pop(f"{module}{suffix}", None)
            if tensor is None:
                raise VerificationError(
                    f"the scale '{module}{suffix}' of the KV cache is missing",
                    where=str(variant.folder),
                    hint="quantize again; see the worker.log",
                )
            if tensor.dtype not in SCALE_TYPES:
                raise VerificationError(
                    f"'{tensor.name}' is stored as {tensor.dtype}, "
                    f"not as {' or '.join(SCALE_TYPES)}",
                    where=str(tensor.path),
                )
            found.append(tensor)
    if not found:
        raise VerificationError(
            "the recipe requires scales of the KV cache, and the source has no key layer",
            where=str(source.folder),
            hint=f"known: {', '.join(KEY_LAYERS)}; use a recipe without kv_cache_scales",
        )
    return found

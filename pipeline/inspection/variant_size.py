"""Size of a variant's weights, from the source's headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.inspection.divisibility import find_undivided_columns
from pipeline.inspection.header_source import read_folder
from pipeline.inspection.linear_layers import WEIGHT, is_head, is_quantizable, is_tied
from pipeline.inspection.unquantized_modules import ignore_list
from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat


@dataclass(frozen=True)
class VariantTensor:
    """A source tensor and its size in the variant."""

    name: str  # in the source
    tensor: TensorEntry  # of the source
    bytes: int  # in the variant, with scales and zero points
    quantized: bool  # the recipe quantizes it
    form: WeightFormat | None = None  # of a matrix that the recipe quantizes


@dataclass(frozen=True)
class VariantWeights:
    """All tensors of a variant."""

    tensors: tuple[VariantTensor, ...]  # in the source's order
    # Columns that no group size of the recipe divides; quantization will fail.
    undivided: tuple[int, ...] = ()

    @property
    def forms(self) -> tuple[WeightFormat, ...]:
        """Formats that the recipe makes."""
        return tuple(dict.fromkeys(each.form for each in self.tensors if each.form))

    @property
    def label(self) -> str | None:
        """Their names; None without any."""
        return " and ".join(form.label for form in self.forms) or None

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


def estimated_bytes(folder: Path, quantization: Quantization) -> int:
    """Return bytes of the quantized weights, without headers."""
    source = read_folder(folder)
    return variant_weights(source.tensors, quantization, source.config).bytes


def variant_weights(
    tensors: Mapping[str, TensorEntry], quantization: Quantization, config: Mapping[str, Any]
) -> VariantWeights:
    """Return the size of each tensor in the variant.

    Args:
        config: the source's config.json. If it ties the output head to the embedding and the source
        stores both, the variant stores one.
    """
    tied = is_tied(config)
    kept = {name: tensor for name, tensor in tensors.items() if not (tied and is_head(name))}
    parts = quantization.parts
    by_part: list[list[str]] = [[] for _ in parts]
    if quantization.quantizes:
        ignore = ignore_list(tensors, config, quantization.ignore, fp8=quantization.is_fp8)
        for name, tensor in kept.items():
            if is_quantizable(name, tensor, ignore):
                by_part[quantization.part_of(name.removesuffix(WEIGHT))].append(name)
    forms: dict[str, WeightFormat] = {}
    undivided: set[int] = set()
    for part, chosen in zip(parts, by_part, strict=True):
        columns = {kept[name].shape[1] for name in chosen}
        if chosen:
            forms |= dict.fromkeys(chosen, part.choose_format(columns))
        undivided |= {*find_undivided_columns(part, columns)}
    return VariantWeights(
        tensors=tuple(
            VariantTensor(name, tensor, _bytes(tensor, form), form is not None, form)
            for name, tensor in kept.items()
            for form in (forms.get(name),)
        ),
        undivided=tuple(sorted(undivided)),
    )


def stored_weights(
    tensors: Mapping[str, TensorEntry], stored: Mapping[str, TensorEntry]
) -> VariantWeights:
    """Return the size of each tensor in a variant that exists already.

    Args:
        tensors: of the source.
        stored: of the variant; what stands for a matrix has its module's name.
    """
    sizes: Counter[str] = Counter()
    for name, tensor in stored.items():
        module = name
        while module and f"{module}.weight" not in tensors:
            module = module.rpartition(".")[0]
        sizes[name if name in tensors else f"{module}.weight" if module else name] += tensor.size
    return VariantWeights(
        tensors=tuple(
            VariantTensor(name, tensor, sizes[name], sizes[name] < tensor.size)
            for name, tensor in tensors.items()
            if name in sizes
        ),
    )


def _bytes(tensor: TensorEntry, form: WeightFormat | None) -> int:
    if form is None:
        return tensor.size
    rows, columns = tensor.shape
    return form.matrix_bytes(rows, columns)

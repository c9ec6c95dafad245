"""Size of a variant's weights, from headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.checkpoints.ignore_list import ignore_list
from recipes.checkpoints.module_kind import WEIGHT, is_head, is_quantizable, is_tied
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat, find_dividing

# vLLM stacks these in one matrix (q, k, v; gate, up), and no block may cross the seam:
# `validate_fp8_block_shape` in its fp8_utils. The last part may end within a block.
ABOVE_A_SEAM = ("q_proj", "k_proj", "gate_proj", "w1")


@dataclass(frozen=True)
class VariantTensor:
    """A source tensor's size in the variant."""

    name: str  # in the source
    tensor: TensorEntry  # of the source
    bytes: int  # in the variant, with scales and zero points
    quantized: bool
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
        return tuple(dict.fromkeys(tensor.form for tensor in self.tensors if tensor.form))

    @property
    def label(self) -> str | None:
        """Their names; None without any."""
        return " and ".join(form.label for form in self.forms) or None

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


def variant_weights(
    tensors: Mapping[str, TensorEntry], quantization: Quantization, config: Mapping[str, Any]
) -> VariantWeights:
    """Return the size of each tensor in the variant.

    A tied output head is stored once.
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
    weights = []
    for name, tensor in kept.items():
        form = forms.get(name)
        size = form.matrix_bytes(*tensor.shape) if form else tensor.size
        weights.append(VariantTensor(name, tensor, size, form is not None, form))
    return VariantWeights(tuple(weights), tuple(sorted(undivided)))


def stored_weights(
    tensors: Mapping[str, TensorEntry], stored: Mapping[str, TensorEntry]
) -> VariantWeights:
    """Return each source tensor's size in an existing variant.

    A matrix' tensors in `stored` begin with its module's name.
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


def find_undivided_columns(quantization: Quantization, columns: Iterable[int]) -> tuple[int, ...]:
    """Return columns that no group size divides."""
    widths = set(columns)
    sizes = quantization.group_sizes
    if not sizes or find_dividing(sizes, widths):
        return ()
    return tuple(sorted(width for width in widths if width % min(sizes)))


def find_undivided_rows(
    quantization: Quantization, shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return rows by layer that vLLM's blocks do not divide."""
    rows = {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        block = quantization.for_module(module).rows_of_block
        if block and module.rpartition(".")[2] in ABOVE_A_SEAM and shape[0] % block:
            rows[name] = shape[0]
    return rows

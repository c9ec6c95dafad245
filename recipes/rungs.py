"""Rungs between 4 and 8 bits: which modules get 8 bits again, within a share of more bytes.

`--recipe awq-w4a16+5` means `awq-w4a16` with 5 % more bytes. Sets of modules that the engine fuses
are given back where rounding to 4 bits leaves the least signal over noise (SQNR), outer layers
before inner ones. The choice within the bytes is a knapsack. No text, gradient or forward pass is
needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from prepare.errors import UsageError
from prepare.events import Progress
from prepare.untrusted import first_fault
from recipes.checkpoints.module_kind import WEIGHT, block_name
from recipes.checkpoints.safetensors_header import SafetensorsHeader, TensorEntry
from recipes.checkpoints.variant_size import VariantTensor, VariantWeights, variant_weights
from recipes.checkpoints.weight_files import read_headers
from recipes.fused_sets import (
    is_renamed_expert,
    join_layers,
    pattern_of_set,
)
from recipes.quantizers.preset import SCHEMES, EightBits, WithOtherSchemes
from recipes.schema import Recipe
from recipes.weights.rounding_noise import TYPES, energies, read_rows

_RUNG = re.compile(r"(?P<base>.+?)\+(?P<percent>[0-9]{1,3}(?:\.[0-9]{1,2})?)")
MAX_PERCENT = 100
ROWS_OF_SET = 256
"""Rows that are read of a set of matrices; noise differs little between rows."""
UNITS = 20_000
"""Parts of the bytes that may be spent; each set takes whole parts."""
PARTS_OF_COST = 10**6
"""Costs are integers, so that another CPU's last bits do not change the choice."""
OUTERMOST = 4.0
"""What the noise of the first and the last layer counts, where that of the middle ones counts 1."""
LAYERS_OUTSIDE = 2.0
"""Layers from the outside inwards, over which that falls to 1/e."""
FP8_CAPABILITY = 8.9
"""Compute capability of the first GPU that multiplies in FP8."""


@dataclass(frozen=True)
class Rung:
    """A recipe's name, and the share of bytes to give back; None for the recipe as it is."""

    base: str
    percent: Decimal | None = None

    @classmethod
    def parse(cls, text: str) -> Rung:
        """Read `NAME` or `NAME+PERCENT`; UsageError for a share that is none."""
        match = _RUNG.fullmatch(text)
        if match is None:
            return cls(text)
        percent = Decimal(match["percent"]).normalize()
        if not 0 < percent <= MAX_PERCENT:
            raise UsageError(
                f"{percent:f} % is no share of bytes that can be given back",
                where=f"--recipe {text}",
                hint=f"give more than 0 and at most {MAX_PERCENT}, as {match['base']}+5",
            )
        return cls(match["base"], percent)

    @property
    def suffix(self) -> str:
        """The end of the variant's name."""
        return f"-plus-{self.percent:f}"


@dataclass(frozen=True)
class FusedSet:
    """Modules that the engine stores as one matrix, or that have one format for another reason."""

    pattern: str
    modules: tuple[str, ...]
    more_bytes: int  # in the format that is given back
    noise: float  # that it removes, as a share of the weights' energy; more in outer layers

    @property
    def place(self) -> tuple[str, int]:
        """Its names inside of its layer, and the layer; -1 outside of layers."""
        first = self.modules[0]
        block = block_name(f"{first}.")
        if not block:
            return first, -1
        parent = first.removeprefix(f"{block}.").rpartition(".")[0]
        layer = int(block.rpartition(".")[2])
        if ".experts." in first:
            return f"{parent.partition('experts.')[0]}experts", layer
        leaves = sorted(module.rpartition(".")[2] for module in self.modules)
        return f"{parent}.{'+'.join(leaves)}", layer


@dataclass(frozen=True)
class GivenBack:
    """What a rung gives back."""

    scheme: str
    sets: tuple[FusedSet, ...]
    of_sets: int
    budget: int  # bytes

    @property
    def more_bytes(self) -> int:
        return sum(one.more_bytes for one in self.sets)

    @property
    def words(self) -> str:
        layers: dict[str, list[int]] = {}
        for one in self.sets:
            name, layer = one.place
            layers.setdefault(name, []).append(layer)
        named = (f"{name} {_ranges(numbers)}".rstrip() for name, numbers in layers.items())
        return (
            f"{len(self.sets)} of {self.of_sets} sets of modules in {self.scheme}, "
            f"{self.more_bytes / 1e6:,.1f} of {self.budget / 1e6:,.1f} MB: {'; '.join(named)}"
        )


def rung_of(recipe: Recipe, rung: Rung) -> Recipe:
    """Return the recipe under the rung's name; UsageError if it has nothing to give back."""
    if rung.percent is None:
        return recipe
    quantization = recipe.quantization
    fault = ""
    if not isinstance(quantization, WithOtherSchemes):
        fault = "its kind has one format for all modules"
    elif quantization.weight_formats[0].bits >= 8:
        fault = "its weights have 8 bits already"
    elif quantization.calibration is None:
        fault = "it is made without calibration, by which modules in several formats are made"
    if fault:
        raise UsageError(
            f"'{recipe.name}' can give nothing back: {fault}",
            where=f"--recipe {rung.base}+{rung.percent:f}",
            hint="take a recipe of AWQ, GPTQ or NVFP4, such as awq-w4a16+5",
        )
    summary = f"{recipe.summary}; {rung.percent:f} % of the bytes given back"
    return recipe.model_copy(update={"name": f"{recipe.name}{rung.suffix}", "summary": summary})


def give_back(
    recipe: Recipe,
    folder: Path,
    tensors: Mapping[str, TensorEntry],
    config: Mapping[str, Any],
    percent: Decimal,
    scheme: EightBits,
    progress: Progress,
) -> tuple[Recipe, GivenBack]:
    """Return the recipe with what it gives back as `other_schemes`.

    UsageError: the share is too small for any set, or large enough for all; or the lists of modules
    are longer than a recipe's may be.
    """
    quantization = recipe.quantization
    weights = variant_weights(tensors, quantization, config)
    if weights.undivided:
        raise UsageError(
            f"'{recipe.name}' does not suit this checkpoint: none of its group sizes divides "
            f"layers of {', '.join(map(str, weights.undivided))} columns",
            where="--recipe",
            hint="choose fp8-dynamic, or name these layers in quantization.other_schemes",
        )
    budget = int(weights.bytes * percent / 100)
    sets = measure_sets(recipe, folder, weights, scheme, progress)
    chosen = choose_sets(sets, budget) if sets else []
    where = f"--recipe, the share {percent:f} % of '{recipe.name}'"
    if len(chosen) in (0, len(sets)):
        least = min((one.more_bytes for one in sets), default=0)
        told = (
            f"{percent:f} % are {budget:,} bytes, and the smallest set of modules takes {least:,}"
            if sets and not chosen
            else f"{percent:f} % give back all {len(sets)} sets of modules"
        )
        hint = f"give at least {_percent_for(least, weights.bytes):f} %"
        raise UsageError(
            told, where=where, hint=hint if sets and not chosen else "choose fp8-dynamic, or less"
        )
    given = GivenBack(scheme, tuple(chosen), len(sets), budget)
    assert isinstance(quantization, WithOtherSchemes)
    others = {**quantization.others}
    others[scheme] = [*others.get(scheme, []), *join_layers(one.pattern for one in chosen)]
    keys = quantization.model_dump() | {"other_schemes": others}
    try:
        changes: dict[str, Any] = {"quantization": quantization.model_validate(keys)}
    except ValidationError as error:
        raise UsageError(
            f"the recipe with these {len(chosen)} sets could not be read: {first_fault(error)}",
            where=where,
            hint="shorten the recipe's own lists of modules",
        ) from error
    if SCHEMES[scheme].form.number == "float":
        least_gpu = max(recipe.minimum_compute_capability or 0.0, FP8_CAPABILITY)
        changes["minimum_compute_capability"] = least_gpu
    return recipe.model_copy(update=changes), given


def choose_sets(sets: list[FusedSet], budget: int) -> list[FusedSet]:
    """Return the sets that remove the most noise within the bytes.

    By dynamic programming over bytes, in units. `scipy.optimize.milp` needed minutes where many
    sets remove about as much noise for each byte.
    """
    unit = budget / UNITS or 1
    sizes = [math.ceil(one.more_bytes / unit) for one in sets]
    largest = max(one.noise for one in sets) or 1.0
    best = np.zeros(UNITS + 1, np.int64)  # by the units that are spent at most
    takes = []
    for one, size in zip(sets, sizes, strict=True):
        # One part more, so that sets without noise are given back as well if there is room.
        gain = 1 + max(0, round(PARTS_OF_COST * one.noise / largest))
        with_it = np.full_like(best, -1)
        with_it[size:] = best[: max(0, len(best) - size)] + gain
        takes.append(with_it > best)
        best = np.maximum(best, with_it)
    left = UNITS
    chosen = []
    for one, size, is_taken in reversed(list(zip(sets, sizes, takes, strict=True))):
        if is_taken[left]:
            chosen.append(one)
            left -= size
    return chosen[::-1]


def measure_sets(
    recipe: Recipe,
    folder: Path,
    weights: VariantWeights,
    scheme: EightBits,
    progress: Progress,
) -> list[FusedSet]:
    """Measure each set of modules in the recipe's main format, in the checkpoint's order.

    All sets write to one residual stream after normalized inputs, so that a large set's relative
    noise counts as a small one's.
    """
    quantization = recipe.quantization
    last = len(quantization.parts) - 1
    by_pattern: dict[str, list[VariantTensor]] = {}
    for tensor in weights.tensors:
        module = tensor.name.removesuffix(WEIGHT)
        if tensor.form is None or quantization.part_of(module) != last:
            continue
        if is_renamed_expert(module):
            continue
        if tensor.tensor.dtype in TYPES and tensor.tensor.elements:
            by_pattern.setdefault(pattern_of_set(module), []).append(tensor)
    places = {
        name: (path, header)
        for path, header in read_headers(folder).items()
        for name in header.tensors
    }
    measured = []
    for number, (pattern, members) in enumerate(by_pattern.items(), start=1):
        measured.append(_measure(pattern, members, places, scheme))
        progress.advance(f"noise of {recipe.name}", number, len(by_pattern), "sets of modules")
    last_layer = max((one.place[1] for one in measured), default=0)
    return [
        replace(one, noise=one.noise * weight_of_layer(one.place[1], last_layer))
        for one in measured
    ]


def weight_of_layer(layer: int, last: int) -> float:
    """Return what a layer's noise counts: the most at both ends; 1 outside of layers (-1)."""
    if layer < 0:
        return 1.0
    from_outside = min(layer, last - layer)
    return 1 + (OUTERMOST - 1) * math.exp(-from_outside / LAYERS_OUTSIDE)


def _measure(
    pattern: str,
    members: list[VariantTensor],
    places: Mapping[str, tuple[Path, SafetensorsHeader]],
    scheme: EightBits,
) -> FusedSet:
    """Read rows of one matrix after another."""
    eight = SCHEMES[scheme].form
    signal = removed = 0.0
    more = 0
    for member in members:
        assert member.form is not None
        rows = read_rows(*places[member.name], member.name, -(-ROWS_OF_SET // len(members)))
        energy, noise = energies(rows, member.form)
        # Rows of each matrix stand for all of its rows.
        share = member.tensor.shape[0] / len(rows)
        signal += share * energy
        removed += share * (noise - energies(rows, eight)[1])
        more += eight.matrix_bytes(*member.tensor.shape) - member.bytes
    modules = tuple(member.name.removesuffix(WEIGHT) for member in members)
    noise = removed / signal if signal else 0.0
    return FusedSet(pattern, modules, more, noise if np.isfinite(noise) else 0.0)


def _ranges(numbers: list[int]) -> str:
    """Return layers in words, such as '0, 3-7'; '' for a place outside of layers."""
    parts: list[list[int]] = []
    for number in sorted(number for number in numbers if number >= 0):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def _percent_for(size: int, whole: int) -> Decimal:
    """Return the least share in steps of a hundredth."""
    return Decimal(-(-size * 10_000 // whole)) / 100

"""Verification of a variant against its source: files and headers here, numbers by a worker.

The worker (`recipes/weights/check_weights_worker.py`) runs in the environment that has
compressed-tensors. This module selects and judges its comparisons.

The floors are part of each kind in `recipes/quantizers`: with rounding to nearest the SQNR hardly
depends on the model. docs/explanation/limits.md has the measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import VerificationError
from recipes.checkpoints.module_kind import is_quantizable, is_tied
from recipes.checkpoints.weight_files import read_json
from recipes.quantization import Quantization
from recipes.weights.comparison import Compare, LayerCheck, WeightComparison
from recipes.weights.files import check_auxiliary_files, check_config, check_only_safetensors
from recipes.weights.stored_parts import has_numbers
from recipes.weights.tensor_accounting import (
    TensorAccounting,
    TensorFiles,
    account,
    open_folder,
)
from recipes.weights.weight_format import FormOf, check_format

# Fraction of rows where compensation may leave a noisy piece: GPTQ moves errors to where outputs
# do not depend on them. Measured: up to 12 of 576 rows in one place.
MAX_ROW_FRACTION = 0.1


@dataclass
class VerificationResult:
    """Facts about a sound variant."""

    layers: list[LayerCheck] = field(default_factory=list)  # each measured layer
    # Changes of type of kept tensors by name, such as 'BF16 to F16'.
    altered: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0  # of the weight files
    notes: list[str] = field(default_factory=list)  # for the user
    # Findings of `compare_outputs`, if columns were rescaled.
    outputs: Mapping[str, Any] | None = None
    # Why the weights were not compared with the source's; empty if they were.
    not_compared: str = ""
    # Median SQNR and lowest floor, in dB; None where columns were rescaled.
    median_db: float | None = None
    floor_db: float | None = None


def verify_variant(
    source: Path, variant: Path, recipe: Quantization, compare: Compare
) -> VerificationResult:
    """Compare the variant with its source and its recipe.

    Fast checks of files and headers come first, then all bytes of both.

    Raises:
        VerificationError: for the first defective file, tensor or layer.
        CheckpointError: a file is missing, truncated or damaged.
    """
    check_only_safetensors(variant)
    config = read_json(variant / "config.json")
    where = f"{variant / 'config.json'}, key quantization_config"
    form_of = check_format(config, recipe, where)
    check_auxiliary_files(source, variant)
    check_config(source, variant)
    scheme = (config.get("quantization_config") or {}).get("kv_cache_scheme")
    scales = str(scheme.get("strategy")) if isinstance(scheme, dict) else None
    if scales != recipe.kv_cache_strategy:
        raise VerificationError(
            f"config.json has {scales or 'no'} scales of the KV cache, and the recipe requires "
            f"{recipe.kv_cache_strategy or 'none'}",
            where=f"{where}.kv_cache_scheme",
        )
    before, after = open_folder(source), open_folder(variant)
    accounts = account(
        before,
        after,
        form_of,
        lambda name, tensor: is_quantizable(name, tensor, recipe.ignore),
        tied=is_tied(read_json(source / "config.json")),
        kv_scales=scales is not None,
    )
    found = VerificationResult(size_bytes=check_smaller(source, variant))
    rescaled = recipe.rounding == "rescaled"
    compare_numbers(found, accounts, form_of, recipe, before, after, compare, rescaled)
    return found


def weights_size(folder: Path) -> int:
    """Return the bytes of the weight files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def check_smaller(source: Path, variant: Path) -> int:
    """Return the size of the variant's weight files, which must be below the source's."""
    size, whole = weights_size(variant), weights_size(source)
    if size >= whole:
        raise VerificationError(
            f"the variant's weights take {size} bytes, the source's only {whole}",
            where=str(variant),
        )
    return size


def compare_numbers(
    found: VerificationResult,
    accounts: TensorAccounting,
    form_of: FormOf,
    recipe: Quantization,
    before: TensorFiles,
    after: TensorFiles,
    compare: Compare,
    rescaled: bool | None,
) -> None:
    """Compare all numbers, and complete `found`; `rescaled` as in `WeightComparison`.

    Raises VerificationError for the first defective tensor or layer.
    """
    where = str(after.folder)
    sources = {tensor.name.removesuffix(".weight"): tensor for tensor in accounts.quantized}
    forms = {module: form_of(module) for module in sources}
    findings = compare(
        WeightComparison(
            source=str(before.folder),
            variant=where,
            layers={module: form for module, form in forms.items() if has_numbers(form)},
            kept=tuple(tensor.name for tensor, _ in accounts.kept),
            merged=tuple(
                (
                    "source" if head.path.parent == before.folder else "variant",
                    head.name,
                    table.name,
                )
                for head, table in accounts.merged
            ),
            scales=tuple(scale.name for scale in accounts.kv_scales),
            rescaled=rescaled,
            rounds=not recipe.keeps_types,
        )
    )
    for noise in findings["layers"]:
        module = noise["name"]
        rows, columns = sources[module].shape
        floor, form = recipe.floor_of(module, forms[module]), forms[module]
        found.layers.append(
            LayerCheck(format=str(form), rows=rows, columns=columns, floor_db=floor, **noise)
        )
    found.altered, found.outputs = findings["altered"], findings["outputs"]
    unread = [form for form in forms.values() if not has_numbers(form)]
    if findings["rescaled"] and found.outputs is None and found.layers:
        found.not_compared = (
            "columns were rescaled, and no library here converts "
            f"{forms[found.layers[0].name]} to 16 bits"
        )
    elif unread:
        found.not_compared = f"no library here dequantizes {unread[0]}"
    if found.not_compared:
        found.notes.append(
            f"the numbers of {len(unread) or len(found.layers)} layers are not compared with the "
            f"source's: {found.not_compared}; the gates decide"
        )
    if not findings["rescaled"]:
        _judge_layers(found, recipe, where)
    if outputs := found.outputs:
        found.notes.append(
            f"outputs over {outputs['tokens']} tokens: {outputs['divergence_nats']:.3f} nats from "
            f"the source's, the same token first in {outputs['same_next_token']:.0%}; worst block: "
            f"{outputs['worst_block']} {outputs['worst_block_db'] or 0:.1f} dB"
        )
    if found.altered:
        name, change = next(iter(found.altered.items()))
        found.notes.append(
            f"{len(found.altered)} kept tensors are stored differently: {name} {change}, ..."
        )


def _judge_layers(found: VerificationResult, recipe: Quantization, where: str) -> None:
    """Compare each layer with its floor, and look for damaged pieces of rows."""
    lossy = sorted(
        (layer.sqnr_db - layer.floor_db, layer.name, layer)
        for layer in found.layers
        if layer.sqnr_db is not None
    )
    if lossy:
        _, _, worst = lossy[0]
        found.floor_db = min(layer.floor_db for layer in found.layers)
        found.median_db = statistics.median(layer.sqnr_db or 0.0 for _, _, layer in lossy)
        alike = [layer for _, _, layer in lossy if layer.floor_db == worst.floor_db]
        middle = statistics.median(layer.sqnr_db or 0.0 for layer in alike)
        told = f"the median of {len(alike)} layers is {middle:.1f} dB"
        below = sum(margin < 0 for margin, _, _ in lossy)
        if below:
            raise VerificationError(
                f"the weights of '{worst.name}' have an SQNR of {worst.sqnr_db:.1f} dB, under the "
                f"floor of {worst.floor_db:.0f} dB; {told}"
                + (f", and {below} are under the floor" if below > 1 else ""),
                where=where,
                hint="about 0 dB or less means wrong or missing weights: check how the variant was "
                "written; otherwise use more calibration data, or ignore the layer",
            )
        named = f"{worst.name} with {worst.sqnr_db:.1f} dB (floor {worst.floor_db:.0f})"
        found.notes.append(f"SQNR of the weights: {told}; the worst is {named}")
    for layer in found.layers:
        beyond = layer.most_in_a_column > MAX_ROW_FRACTION * layer.rows
        if layer.count and (beyond or recipe.rounding != "compensated"):
            row, column = layer.damaged[0]
            places = "1 place" if layer.count == 1 else f"{layer.count} places, the first"
            raise VerificationError(
                f"the weights of '{layer.name}' are not the source's in {places} in row {row} "
                f"from column {column} on: the difference there is as large as the weights",
                where=where,
                hint="the file is damaged, or the source has such outliers there that a whole "
                "group was rounded away; quantize again, and ignore the layer if it happens again",
            )

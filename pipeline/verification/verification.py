"""Verification of a variant against its source: files and headers here, numbers by a worker.

The worker (`pipeline/workers/check_weights.py`) runs in the environment that has
compressed-tensors. This module decides what it compares, and judges what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import read_json
from pipeline.core.errors import VerificationError
from pipeline.inspection.linear_layers import is_quantizable, is_tied
from pipeline.inspection.variant_size import estimated_bytes
from pipeline.verification import sqnr_floors
from pipeline.verification.auxiliary_files import (
    check_auxiliary_files,
    check_config,
    check_only_safetensors,
)
from pipeline.verification.comparison import LayerNoise, WeightComparison
from pipeline.verification.sqnr_floors import LayerStats
from pipeline.verification.stored_parts import has_numbers
from pipeline.verification.tensor_accounting import TensorAccounting, account
from pipeline.verification.tensor_files import TensorFiles, open_folder
from pipeline.verification.weight_format import FormOf, check_format, kv_cache_strategy
from recipes.quantization import Quantization, Rounding

# Relative to the planned size.
SIZE_TOLERANCE = 0.03
SIZE_SLACK = 4096

# Runs the worker on a comparison, and returns its findings.
Compare = Callable[[WeightComparison], Mapping[str, Any]]


@dataclass
class VerificationResult:
    """Facts about a sound variant."""

    layers: list[LayerStats] = field(default_factory=list)  # each quantized layer
    floor_db: float | None = None  # minimum SQNR; None if no layer was measured
    kept: int = 0  # number of unquantized tensors
    # Their changes of type by name, such as 'BF16 to F16'.
    altered: dict[str, str] = field(default_factory=dict)
    merged: int = 0  # heads that equal the embedding
    scales: int = 0  # number of scale tensors
    size_bytes: int = 0  # of the weight files
    planned_bytes: int = 0  # of the tensors, as planned
    # Keys of config.json with default values that the variant lacks.
    dropped_keys: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # notes for the user
    # Findings of `compare_outputs`, if columns were rescaled.
    outputs: Mapping[str, Any] | None = None
    # Why the weights were not compared with the source's; empty if they were.
    not_compared: str = ""


def verify_variant(
    source: Path, variant: Path, recipe: Quantization, compare: Compare
) -> VerificationResult:
    """Compare the variant with its source and its recipe.

    Fast checks of files, headers and sizes come first, then all bytes of both.

    Raises:
        VerificationError: for the first defective file, tensor or layer.
        CheckpointError: a file is missing, truncated or damaged.
    """
    check_only_safetensors(variant)
    form_of = check_format(variant, read_json(variant / "config.json"), recipe)
    check_auxiliary_files(source, variant)
    found = VerificationResult(dropped_keys=check_config(source, variant))
    before, after = open_folder(source), open_folder(variant)
    accounts = _accounts(before, after, form_of, recipe)
    found.size_bytes = check_smaller(source, variant)
    found.planned_bytes = check_planned_size(source, after, accounts, recipe)
    rescaled = recipe.rounding == "rescaled"
    compare_numbers(found, accounts, form_of, recipe, before, after, compare, rescaled)
    return found


def _accounts(
    before: TensorFiles, after: TensorFiles, form_of: FormOf, recipe: Quantization
) -> TensorAccounting:
    wanted = recipe.kv_cache_strategy
    found = kv_cache_strategy(read_json(after.folder / "config.json"))
    if wanted != found:
        raise VerificationError(
            f"config.json has {found or 'no'} scales of the KV cache, and the recipe requires "
            f"{wanted or 'none'}",
            where=f"{after.folder / 'config.json'}, key quantization_config.kv_cache_scheme",
        )
    return account(
        before,
        after,
        form_of,
        lambda name, tensor: is_quantizable(name, tensor, recipe.ignore),
        tied=is_tied(read_json(before.folder / "config.json")),
        kv_scales=wanted is not None,
    )


def check_smaller(source: Path, variant: Path) -> int:
    """Return the size of the variant's weight files, which must be below the source's."""
    size, whole = (
        sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        for folder in (variant, source)
    )
    if size >= whole:
        raise VerificationError(
            f"the variant's weights take {size} bytes, the source's only {whole}",
            where=str(variant),
        )
    return size


def check_planned_size(
    source: Path, variant: TensorFiles, accounts: TensorAccounting, recipe: Quantization
) -> int:
    """Check the variant's size against the plan; return the planned bytes."""
    planned = estimated_bytes(source, recipe)
    extra = sum(tensor.size for tensor in accounts.kv_scales) + sum(
        head.size for head, _ in accounts.merged if head.path.parent == variant.folder
    )
    # The plan assumes 16-bit scales; those of a float32 checkpoint have 32 bits.
    extra += sum(
        tensor.size // 2
        for name, tensor in variant.tensors.items()
        if name.endswith(".weight_scale") and tensor.dtype == "F32"
    )
    if abs(variant.size - extra - planned) > SIZE_TOLERANCE * planned + SIZE_SLACK:
        raise VerificationError(
            f"the variant's tensors take {variant.size} bytes, {planned} were planned",
            where=str(variant.folder),
            hint="more or fewer layers stayed in 16 bits than the recipe requires",
        )
    return planned


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
    """Compare all numbers, and complete `found`.

    Args:
        rescaled: see `WeightComparison`.

    Raises:
        VerificationError: for the first defective tensor or layer.
    """
    where = str(after.folder)
    modules = [tensor.name.removesuffix(".weight") for tensor in accounts.quantized]
    forms = {module: form_of(module) for module in modules}
    comparison = WeightComparison(
        source=str(before.folder),
        variant=where,
        layers={module: form for module, form in forms.items() if has_numbers(form)},
        kept=tuple(tensor.name for tensor, _ in accounts.kept),
        merged=tuple(
            ("source" if head.path.parent == before.folder else "variant", head.name, table.name)
            for head, table in accounts.merged
        ),
        scales=tuple(scale.name for scale in accounts.kv_scales),
        rescaled=rescaled,
        rounds=not recipe.keeps_types,
    )
    findings = compare(comparison)
    noises = {each["name"]: LayerNoise(**each) for each in findings["layers"]}
    for module, tensor in zip(modules, accounts.quantized, strict=True):
        if noise := noises.get(module):
            rows, columns = tensor.shape
            floor = recipe.floor_of(module, forms[module])
            found.layers.append(
                LayerStats(module, str(forms[module]), rows, columns, noise.sqnr_db, floor)
            )
    found.kept, found.merged = len(accounts.kept), len(accounts.merged)
    found.altered = findings["altered"]
    found.scales = len(accounts.kv_scales) + len(found.layers)
    found.outputs = findings["outputs"]
    if findings["rescaled"] and found.outputs is None and found.layers:
        found.not_compared = (
            "columns were rescaled, and no library here converts "
            f"{forms[found.layers[0].name]} to 16 bits"
        )
        found.notes.append(f"the weights are not compared with the source's: {found.not_compared}")
    if unread := [form for form in forms.values() if not has_numbers(form)]:
        found.not_compared = f"no library here dequantizes {unread[0]}"
        found.notes.append(
            f"the numbers of {len(unread)} layers are not compared with the source's: "
            f"{found.not_compared}; the gates decide"
        )
    rounding: Rounding = recipe.rounding
    if not findings["rescaled"]:
        _check_layers(found, noises, rounding, where)
    found.notes += _notes(found)


def _check_layers(
    found: VerificationResult,
    noises: Mapping[str, LayerNoise],
    rounding: Rounding,
    where: str,
) -> None:
    for floor in {fact.floor_db for fact in found.layers}:
        alike = [fact for fact in found.layers if fact.floor_db == floor]
        sqnr_floors.check_floor(alike, floor, where)
    found.floor_db = min((fact.floor_db for fact in found.layers), default=None)
    for fact, middle in sqnr_floors.outliers(found.layers):
        words = (
            f"'{fact.name}' has an SQNR of {fact.sqnr_db:.1f} dB, and layers of its kind have "
            f"{middle:.1f} dB in the median"
        )
        if rounding == "nearest":
            raise VerificationError(
                words,
                where=where,
                hint="rounding to nearest treats all layers alike: check how it was written",
            )
        found.notes.append(words)
    for fact in found.layers:
        sqnr_floors.check_pieces(fact, noises[fact.name], rounding, where)


def _notes(found: VerificationResult) -> list[str]:
    worst = sqnr_floors.worst_layers(found.layers)
    middle = sqnr_floors.median_db(found.layers)
    notes = []
    if outputs := found.outputs:
        notes.append(
            f"outputs over {outputs['tokens']} tokens: {outputs['divergence_nats']:.3f} nats from "
            f"the source's, the same token first in {outputs['same_next_token']:.0%}; worst block: "
            f"{outputs['worst_block']} {outputs['worst_block_db'] or 0:.1f} dB"
        )
    if worst and middle is not None:
        named = ", ".join(f"{fact.name} {fact.sqnr_db:.1f}" for fact in worst)
        notes.append(
            f"SQNR of {len(found.layers)} layers: median {middle:.1f} dB "
            f"(floor {found.floor_db:.0f}); worst: {named}"
        )
    if found.altered:
        name, change = next(iter(found.altered.items()))
        notes.append(
            f"{len(found.altered)} kept tensors are stored differently: {name} {change}, ..."
        )
    return notes

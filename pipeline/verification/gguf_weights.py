"""Verification of a GGUF variant; a worker compares the tensors, since its package reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import weight_files
from pipeline.core.errors import VerificationError
from pipeline.inspection.variant_size import estimated_bytes
from pipeline.verification.auxiliary_files import (
    OTHER_WEIGHTS,
    check_auxiliary_files,
    check_config,
)
from pipeline.verification.sqnr_floors import LayerStats, check_floor, median_db
from pipeline.verification.verification import VerificationResult
from recipes.quantizers.gguf import FLOORS_DB, GgufQuantization

Compare = Callable[[dict[str, Any]], dict[str, Any]]


def verify_gguf(
    source: Path, variant: Path, recipe: GgufQuantization, compare: Compare
) -> VerificationResult:
    """Compare a variant with its source, which is converted to GGUF again.

    Args:
        compare: runs `pipeline.workers.compare_gguf`.

    Raises:
        VerificationError: for the first defective file, value or tensor.
    """
    (weights,) = weight_files(variant)
    for path in sorted(variant.iterdir()):
        if path != weights and path.suffix in OTHER_WEIGHTS | {".safetensors"}:
            raise VerificationError("the variant has a second weight file", where=str(path))
    check_auxiliary_files(source, variant)
    found = VerificationResult(dropped_keys=check_config(source, variant))
    found.size_bytes = weights.stat().st_size
    if found.size_bytes >= sum(file.stat().st_size for file in weight_files(source)):
        raise VerificationError("the variant is not smaller than its source", where=str(weights))
    found.planned_bytes = estimated_bytes(source, recipe)
    facts = compare({"checkpoint": str(source), "weights": str(weights), "type": recipe.type})
    found.layers = [
        LayerStats(**each, floor_db=FLOORS_DB[each["format"]]) for each in facts["layers"]
    ]
    found.kept, found.floor_db = facts["kept"], recipe.sqnr_floor_db
    for form in dict.fromkeys(layer.format for layer in found.layers):
        alike = [layer for layer in found.layers if layer.format == form]
        check_floor(alike, FLOORS_DB[form], str(weights))
        found.notes.append(
            f"SQNR of {len(alike)} tensors in {form}: median {median_db(alike):.1f} dB"
        )
    return found

"""Tensors that a format stores for a layer, and the check of their scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Floats
from pipeline.verification.tensor_files import StoredTensor

SCALE_TYPES = ("BF16", "F16", "F32")
WORD_BITS = 32
SCALAR: tuple[tuple[int, ...], ...] = ((1,), ())
Shape = tuple[int, int]


@dataclass(frozen=True)
class StoredPart:
    """A tensor that a format stores for a layer: name suffix, possible types and shapes."""

    suffix: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # empty: any


def check_scale(tensor: StoredTensor, values: Floats, *, zero_allowed: bool = False) -> Floats:
    """Return the scales; raise VerificationError unless all are finite and positive."""
    finite = bool(np.isfinite(values).all())
    if finite and bool((values > 0).all() or (zero_allowed and (values >= 0).all())):
        return values
    raise VerificationError(
        f"'{tensor.name}' has a scale that is {'not above zero' if finite else 'not finite'}",
        where=str(tensor.path),
        hint="the calibration overflowed, or the source has such weights; check this layer",
    )


def group_of_columns(tensor: StoredTensor | None, groups: int) -> Any:
    """Return each column's group; None if the columns are in order."""
    if tensor is None:
        return None
    found = tensor.floats().astype(np.intp)
    if found.size and (found.min() < 0 or found.max() >= groups):
        raise VerificationError(
            f"'{tensor.name}' refers to a group outside of the {groups} groups",
            where=str(tensor.path),
        )
    return found

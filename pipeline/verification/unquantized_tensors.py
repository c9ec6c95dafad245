"""Tensors that the recipe leaves alone: equal to the source's, or rescaled where it may rescale."""

from __future__ import annotations

from dataclasses import dataclass
from operator import eq

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Floats, round_to
from pipeline.verification.quantization_noise import chunks
from pipeline.verification.rescaling import measure_rescaled
from pipeline.verification.tensor_files import StoredTensor
from pipeline.verification.weight_format import block_of

# A matrix that is only rescaled (a router behind a norm) loses what 16 bits lose.
RESCALED_DB = 35.0
# Of a number that goes from bf16 or float32 to float16 or bf16; the absolute part is float16's
# smallest normal number, below which it keeps fewer digits.
ROUNDED = 2.0**-8
FLUSHED = 2.0**-14
CURE = "quantize again; what changed it is in the worker.log, if anywhere"


@dataclass(frozen=True)
class UnquantizedTensor:
    """What was found of a tensor."""

    name: str  # of it
    # How it is stored otherwise, such as 'BF16 to F16'; None where it is not.
    altered: str | None = None
    # The source's and the variant's numbers of a vector that was rescaled, or could have been; None
    # for all else.
    weights: tuple[Floats, Floats] | None = None


def check_equal(source: StoredTensor, variant: StoredTensor) -> UnquantizedTensor:
    """The tensor is the source's, byte for byte, or number for number in another type.

    A norm that is stored less one (Gemma's) may have been rounded with the one in it: while
    llm-compressor calibrates, it puts a plain norm in its place (`norm_calibration_context`).
    """
    if source.dtype == variant.dtype:
        if _has_same_bytes(source, variant):
            return UnquantizedTensor(source.name)
        if _is_rounded_with_one(source, variant):
            return UnquantizedTensor(source.name, f"{source.dtype}, rounded as 1 + w")
        raise VerificationError(
            f"'{variant.name}' differs from the source's, and the recipe leaves it alone",
            where=str(variant.path),
            hint=CURE,
        )
    return check_close(source, variant, exact=True)


def check_close(source: StoredTensor, variant: StoredTensor, *, exact: bool) -> UnquantizedTensor:
    """The tensor has the source's numbers in another type, rounded where that is allowed."""
    altered = f"{source.dtype} to {variant.dtype}"
    rows = source.shape[0] if source.shape else 1
    for begin, end in chunks(rows, max(1, source.size // max(1, rows))):
        before, after = source.floats(begin, end), variant.floats(begin, end)
        # NaN is the same as NaN: some checkpoints have unused rows of them.
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if not exact:
            with np.errstate(invalid="ignore"):
                same |= np.abs(before - after) <= np.abs(before) * ROUNDED + FLUSHED
        if not same.all():
            raise VerificationError(
                f"'{variant.name}' went from {altered}, and its numbers differ from the source's",
                where=str(variant.path),
                hint="use a recipe that keeps the checkpoint's own type" if exact else CURE,
            )
    return UnquantizedTensor(source.name, altered)


def check_rescaled(
    source: StoredTensor, variant: StoredTensor, *, rounds: bool
) -> UnquantizedTensor:
    """The tensor is the source's, but for scales that the recipe may have folded into it.

    In another type, what can have no scales in it (embeddings, the last norm, the head) has the
    source's numbers. Vectors of a block are left to `function_preserved` and `biases`, and matrices
    of a block (routers) to the fit.

    Args:
        rounds: the quantizer may round what it stores in another type.

    Raises:
        VerificationError: a vector has no finite numbers or only zeros; a matrix is not the
            source's up to a scale for each row and column; anything else differs.
    """
    altered = None if source.dtype == variant.dtype else f"{source.dtype} to {variant.dtype}"
    if len(source.shape) == 2 and "embed" not in source.name:
        if altered is None and _has_same_bytes(source, variant):
            return UnquantizedTensor(source.name)
        if altered and not rounds and not block_of(source.name):
            return check_close(source, variant, exact=True)
        _check_matrix(source, variant)
        return UnquantizedTensor(source.name, altered)
    is_vector = len(source.shape) == 1
    if not is_vector or not block_of(source.name):  # scales stay within a block
        if altered is None:
            return check_equal(source, variant)
        return check_close(source, variant, exact=not rounds and not is_vector)
    before, after = source.floats(), variant.floats()
    if not np.isfinite(after).all() or ((np.abs(before) > FLUSHED).any() and not after.any()):
        raise VerificationError(
            f"'{variant.name}' holds {'only zeros' if not after.any() else 'no finite numbers'}",
            where=str(variant.path),
            hint=CURE,
        )
    return UnquantizedTensor(source.name, altered, (before, after))


def _check_matrix(source: StoredTensor, variant: StoredTensor) -> None:
    found = measure_rescaled(source, variant).noise.sqnr_db
    if found < RESCALED_DB:
        raise VerificationError(
            f"'{variant.name}' differs from the source's by more than scales of rows and columns "
            f"({found:.1f} dB)",
            where=str(variant.path),
            hint=CURE,
        )


def _is_rounded_with_one(source: StoredTensor, variant: StoredTensor) -> bool:
    if len(source.shape) != 1 or source.dtype not in ("BF16", "F16", "F32"):
        return False
    one_more = round_to(1 + source.floats(), source.dtype)
    return np.array_equal(round_to(one_more - 1, source.dtype), variant.floats())


def _has_same_bytes(source: StoredTensor, variant: StoredTensor) -> bool:
    return source.size == variant.size and all(map(eq, source.blocks(), variant.blocks()))

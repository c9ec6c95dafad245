"""Checks of unquantized tensors: equal to the source's, or rescaled where the recipe allows it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from operator import eq

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Floats, round_to
from pipeline.verification.quantization_noise import chunks
from pipeline.verification.rescaling import RescalingFit, measure_rescaled
from pipeline.verification.tensor_files import StoredTensor
from pipeline.verification.weight_format import block_name

# A matrix that is only rescaled (a router after a norm) has 16-bit rounding errors.
RESCALED_DB = 35.0
# Relative and absolute error of conversion from bf16 or float32 to float16 or bf16. The absolute
# part is float16's smallest normal number, below which precision drops.
ROUNDED = 2.0**-8
FLUSHED = 2.0**-14
HINT = "quantize again; what changed it is in the worker.log, if anywhere"


@dataclass(frozen=True)
class UnquantizedTensor:
    """Result of checking a tensor."""

    name: str
    # Change of type, such as 'BF16 to F16'; None if unchanged.
    altered: str | None = None
    # Values of source and variant of a vector that may be rescaled; otherwise None.
    weights: tuple[Floats, Floats] | None = None
    rescaled: RescalingFit | None = None  # of a matrix that changed


def check_equal(source: StoredTensor, variant: StoredTensor) -> UnquantizedTensor:
    """Check that the tensor equals the source's, in bytes or in values of another type.

    A norm stored minus one (Gemma) may have been rounded as 1 + w: llm-compressor calibrates with a
    plain norm (`norm_calibration_context`).
    """
    if source.dtype == variant.dtype:
        if _has_same_bytes(source, variant):
            return UnquantizedTensor(source.name)
        if _is_rounded_with_one(source, variant):
            return UnquantizedTensor(source.name, f"{source.dtype}, rounded as 1 + w")
        raise VerificationError(
            f"'{variant.name}' differs from the source's, and the recipe does not change it",
            where=str(variant.path),
            hint=HINT,
        )
    return check_close(source, variant, exact=True)


def check_close(source: StoredTensor, variant: StoredTensor, *, exact: bool) -> UnquantizedTensor:
    """Check that the tensor has the source's values in another type, possibly rounded."""
    altered = f"{source.dtype} to {variant.dtype}"
    rows = source.shape[0] if source.shape else 1
    for begin, end in chunks(rows, max(1, source.size // max(1, rows))):
        before, after = source.floats(begin, end), variant.floats(begin, end)
        # NaN equals NaN: some checkpoints have unused rows of NaN.
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if not exact:
            with np.errstate(invalid="ignore"):
                same |= np.abs(before - after) <= np.abs(before) * ROUNDED + FLUSHED
        if not same.all():
            raise VerificationError(
                f"'{variant.name}' changed from {altered}, and its values differ from the source's",
                where=str(variant.path),
                hint="use a recipe that keeps the checkpoint's type" if exact else HINT,
            )
    return UnquantizedTensor(source.name, altered)


def check_rescaled(
    source: StoredTensor, variant: StoredTensor, *, rounds: bool
) -> UnquantizedTensor:
    """Check that the tensor is the source's, except for scales that were folded into it.

    Tensors outside of blocks (embeddings, the last norm, the head) have no scales and must have the
    source's values. `function_equivalence` and `biases` check a block's vectors, and the scales of
    its matrices (routers).

    Args:
        rounds: the quantizer may round when it changes the type.

    Raises:
        VerificationError: a vector is zero or not finite; a matrix differs by more than a scale for
        each row and column; another tensor differs.
    """
    altered = None if source.dtype == variant.dtype else f"{source.dtype} to {variant.dtype}"
    if len(source.shape) == 2 and "embed" not in source.name and block_name(source.name):
        if altered is None and _has_same_bytes(source, variant):
            return UnquantizedTensor(source.name)
        if altered:
            with suppress(VerificationError):
                return check_close(source, variant, exact=False)
        fit = _check_matrix(source, variant)
        return UnquantizedTensor(source.name, altered, rescaled=fit)
    is_vector = len(source.shape) == 1
    if not is_vector or not block_name(source.name):  # scales stay within a block
        if altered is None:
            return check_equal(source, variant)
        return check_close(source, variant, exact=not rounds and not is_vector)
    before, after = source.floats(), variant.floats()
    if not np.isfinite(after).all() or ((np.abs(before) > FLUSHED).any() and not after.any()):
        raise VerificationError(
            f"'{variant.name}' holds {'only zeros' if not after.any() else 'no finite numbers'}",
            where=str(variant.path),
            hint=HINT,
        )
    return UnquantizedTensor(source.name, altered, (before, after))


def _check_matrix(source: StoredTensor, variant: StoredTensor) -> RescalingFit:
    fit = measure_rescaled(source, variant)
    if (found := fit.noise.sqnr_db) < RESCALED_DB:
        raise VerificationError(
            f"'{variant.name}' differs from the source's by more than scales of rows and columns "
            f"({found:.1f} dB)",
            where=str(variant.path),
            hint=HINT,
        )
    return fit


def _is_rounded_with_one(source: StoredTensor, variant: StoredTensor) -> bool:
    if len(source.shape) != 1 or source.dtype not in ("BF16", "F16", "F32"):
        return False
    one_more = round_to(1 + source.floats(), source.dtype)
    return np.array_equal(round_to(one_more - 1, source.dtype), variant.floats())


def _has_same_bytes(source: StoredTensor, variant: StoredTensor) -> bool:
    return source.size == variant.size and all(map(eq, source.blocks(), variant.blocks()))

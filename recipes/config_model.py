"""Base of all YAML configuration models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from prepare.record import CheckedCopyModel

MAX_LETTERS = 4_000  # of any string; only system prompts are nearly as long

# Names become parts of file names, roles and tags.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
# The range that Python, NumPy and torch accept.
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Tiers of a gate: must pass, must not fail, never blocks.
Tier = Literal["critical", "supporting", "advisory"]


class ConfigModel(CheckedCopyModel):
    """Frozen and strict model: no unknown keys, type coercion, NaN or infinity."""

    # Defaults are converted too: stage keys are digests of JSON text, where 10 and 10.0 differ.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        strict=True,
        allow_inf_nan=False,
        str_max_length=MAX_LETTERS,
    )

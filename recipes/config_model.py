"""Base of everything that a user writes as YAML."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from pipeline.core.record import CheckedCopyModel

MAX_LETTERS = 4_000  # of any text; only the system prompts of chats come near

# Names become parts of file names, roles and tags.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
# Python, NumPy and torch take these.
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Tiers of a gate: must pass, must not fail, never blocks.
Tier = Literal["critical", "supporting", "advisory"]


class ConfigModel(CheckedCopyModel):
    """Frozen, and strict: no unknown keys, no texts or truths for numbers, no NaN or infinity.

    Every number says its least and its largest value next to it.
    """

    # Defaults too become what their field says: 10 of a float is 10.0, as it is when the data is
    # read back from a record, and keys are digests of the text.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        strict=True,
        allow_inf_nan=False,
        str_max_length=MAX_LETTERS,
    )

"""Base of everything that a user writes as YAML."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

# Names become parts of file names, roles and tags.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class Described(BaseModel):
    """Frozen, and strict about keys."""

    # Defaults too become what their field says: 10 of a float is 10.0, as it is when the data is
    # read back from a record, and keys are digests of the text.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

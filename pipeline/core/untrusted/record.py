"""Reads records that others wrote: JSON within limits, checked by a model, one fault reported.

A model alone keeps every fault that it finds, and 4 MB of `{}` in the place of a list of files are
three million: minutes, and gigabytes. A list in such a record ends at its first fault (`fail_fast`
of its field); here bytes, depth and values are bounded before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.core.untrusted.file import MEBIBYTE, read_regular
from pipeline.core.untrusted.json import UntrustedJsonError, parse_json

MAX_BYTES = 16 * MEBIBYTE
MAX_VALUES = 400_000  # a list of 80,000 files, or the trails of some thousand gates
MAX_FAULT_CHARACTERS = 300  # letters

Model = TypeVar("Model", bound=BaseModel)


def read_record(path: Path, model: type[Model]) -> Model:
    """The record in a foreign file."""
    return parse_record(read_regular(path, MAX_BYTES), model)


def parse_record(content: bytes, model: type[Model]) -> Model:
    """The record that this JSON is; its size is the caller's to bound."""
    # Twice, since only a model that reads JSON itself takes a list for a tuple, and no more.
    parse_json(content, finite=False, whole_text=False, values=MAX_VALUES)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise UntrustedJsonError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """The first of what is wrong, with its place."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"[:MAX_FAULT_CHARACTERS]

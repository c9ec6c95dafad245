"""Bounded reading of untrusted records: JSON that a model validates, with one fault reported.

Pydantic alone collects every fault; 4 MB of `{}` in a list of files produce three million, which
take minutes and gigabytes. Lists in such records use `fail_fast`; here bytes, depth and values are
limited first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.core.untrusted.file import MEBIBYTE, read_regular
from pipeline.core.untrusted.json import UntrustedJsonError, parse_json

MAX_BYTES = 16 * MEBIBYTE
MAX_VALUES = 400_000  # 80,000 files
MAX_FAULT_CHARACTERS = 300

Model = TypeVar("Model", bound=BaseModel)


def read_record(path: Path, model: type[Model]) -> Model:
    """Return the record in an untrusted file."""
    return parse_record(read_regular(path, MAX_BYTES), model)


def parse_record(content: bytes, model: type[Model]) -> Model:
    """Return the record; the caller limits the content's size."""
    # Parsed twice: only model_validate_json converts lists to tuples and is otherwise strict.
    parse_json(content, finite=False, whole_text=False, values=MAX_VALUES)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise UntrustedJsonError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Return the first fault with its location."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"[:MAX_FAULT_CHARACTERS]

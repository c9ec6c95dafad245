"""Base classes of all serialized records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from prepare.escape import whole_text

ForeignText = Annotated[
    str, BeforeValidator(lambda text: whole_text(text) if isinstance(text, str) else text)
]
"""Text that a server or a model wrote; it may have halves of surrogate pairs."""


class CheckedCopyModel(BaseModel):
    """Model whose copies change only declared fields, or raise ValueError."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        unknown = set(update or ()) - type(self).model_fields.keys()
        if unknown:
            raise ValueError(f"{type(self).__name__} has no field {sorted(unknown)}")
        return super().model_copy(update=update, deep=deep)


class Record(CheckedCopyModel):
    """Frozen record that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SparseRecord(Record):
    """Record serialized without values that are None."""

    @model_serializer(mode="wrap")
    def _leave_out_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}

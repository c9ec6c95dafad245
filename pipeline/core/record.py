"""Base classes of all serialized records."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Record(BaseModel):
    """Frozen record that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SparseRecord(Record):
    """Record that is serialized without keys whose value is None."""

    @model_serializer(mode="wrap")
    def _leave_out_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}

"""Speculative decoding statistics: tokens drafted and accepted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pipeline.core.record import Record

Count = Annotated[int, Field(ge=0, le=2**53)]


class SpecDecodeStats(Record):
    """Differences of the engine's counters."""

    drafts: Count = Field(description="steps of a request in which tokens were drafted")
    draft_tokens: Count = Field(description="tokens drafted in them")
    accepted_tokens: Count = Field(description="of these, accepted")

    @model_validator(mode="before")
    @classmethod
    def _counts_alone(cls, data: Any) -> Any:
        computed = ("rate", "length")
        is_plain = isinstance(data, dict)
        return {k: v for k, v in data.items() if k not in computed} if is_plain else data

    @model_serializer(mode="wrap")
    def _with_what_is_computed(self, counts: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**counts(self), "rate": self.rate, "length": self.length}

    @model_validator(mode="after")
    def _no_more_than_were_drafted(self) -> SpecDecodeStats:
        if self.accepted_tokens > self.draft_tokens:
            raise ValueError("more tokens were accepted than drafted")
        return self

    @property
    def rate(self) -> float | None:
        """Accepted share of the drafted tokens."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def length(self) -> float | None:
        """Tokens of a step with drafts, with the model's own."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def words(self) -> str:
        if self.rate is None or self.length is None:
            return "nothing was drafted"
        return (
            f"{100 * self.rate:.0f} % of {self.draft_tokens:,} drafted tokens accepted, "
            f"{self.length:.2f} tokens a step"
        )

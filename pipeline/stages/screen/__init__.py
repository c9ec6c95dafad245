"""The stage that screens a served model first."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.serving.served_model import ServedModel, ServerInfo, ServerRuntime


class ScreenedText(Record):
    """A prompt and its continuation."""

    prompt: str
    text: str = Field(description="32 greedy tokens of this arm")
    prompt_ids: list[int] = Field([])
    answer_ids: list[int] = Field([], description="the tokens of the text")
    nats: float | None = Field(
        None, description="mean negative log-probability of the baseline's tokens, a token"
    )


class ScreenResult(Record):
    """How much of the baseline's text the model would write."""

    texts: list[ScreenedText] = Field([])
    nats: float | None = Field(None, description="a token; None where the endpoint gives none")
    nats_lost: float | None = Field(None, description="a token, to the baseline")
    kept: float | None = Field(
        None, description="share of the arm's own tokens that are its first choice when it reads"
    )
    baseline_texts: list[str] = Field([], description="of the baseline, after the same prompts")
    broken: str = Field("", description="why it is broken under any policy; '' when it is not")
    server: ServerInfo = ServerInfo()
    engine_version: str = Field("", description="as it reports it; '' of a user's endpoint")

    def fault(self, limit: float) -> str:
        """Return the fault of a model that loses over `limit` nats a token, or ""."""
        if self.broken or self.nats_lost is None or self.nats_lost <= limit:
            return self.broken
        pairs = zip(self.texts, self.baseline_texts, strict=False)
        shown = "; ".join(
            f"after {ours.prompt[-30:]!r} it writes {ours.text[:60]!r}, the baseline {text[:60]!r}"
            for ours, text in pairs
        )
        return (
            f"the served model is broken: it loses {self.nats_lost:.2f} nats a token of its "
            f"baseline's text, more than {limit:g} (policy key broken): {shown}"
        )


SCREEN = Stage("screen", 2, ServedModel, ServerRuntime, ScreenResult)

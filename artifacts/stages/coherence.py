"""The stage that hears whether a served model speaks at all."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from artifacts.served_model import ServedModel, ServerRuntime
from pipeline.core.record import Record
from pipeline.core.stage import Stage


class CoherenceResult(Record):
    """What it said."""

    perplexity: float | None = Field(
        description="None where it is no number, or the endpoint does not score prompts"
    )
    perplexity_ratio: float | None = Field(None, description="to the baseline's")
    sample: str = ""
    incoherent: str = Field("", description="why it must be held to be broken; '' when it is not")
    server: dict[str, Any] = Field({}, description="facts such as ready_seconds and command")
    engine_version: str = Field("", description="as it reports it; '' of somebody's endpoint")

    @property
    def ready_seconds(self) -> float:
        """How long its server took to be ready."""
        return float(self.server.get("ready_seconds", 0.0))


COHERENCE = Stage("coherence", 3, ServedModel, ServerRuntime, CoherenceResult)

"""The stage that checks whether a served model writes coherent text."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.serving.served_model import ServedModel, ServerInfo, ServerRuntime


class CoherenceResult(Record):
    """What it said."""

    perplexity: float | None = Field(
        description="None where it is no number, or the endpoint does not score prompts"
    )
    perplexity_ratio: float | None = Field(None, description="to the baseline's")
    sample: str = ""
    incoherent: str = Field("", description="why it must be held to be broken; '' when it is not")
    server: ServerInfo = ServerInfo()
    engine_version: str = Field("", description="as it reports it; '' of a user's endpoint")


COHERENCE = Stage("coherence", 1, ServedModel, ServerRuntime, CoherenceResult)

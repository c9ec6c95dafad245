"""A model as whoever serves it needs it: folder and arguments; or where it is served already."""

from __future__ import annotations

from pydantic import Field

from artifacts.serving_arguments import ServingArguments
from pipeline.core.record import Record


class ExternalEndpoint(Record):
    """Of a model that someone else serves."""

    url: str
    model: str = Field(description="its name there")


class ServingSpec(Record):
    """One side of a comparison, to be served in this way or asked where it is served."""

    name: str = Field(description="of its recipe; 'baseline' for the baseline")
    folder: str = Field(description="of the checkpoint; of an endpoint's model, its tokenizer's")
    arguments: ServingArguments | None = Field(description="None where someone else serves it")
    ready_timeout_seconds: float = Field(description="that its server has to start")
    trust_remote_code: bool = False
    draft: str | None = Field(None, description="folder of the checkpoint that drafts for it")
    endpoint: ExternalEndpoint | None = Field(None, description="None where we serve it")

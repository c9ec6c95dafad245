"""What is needed to serve a model, or the endpoint that serves it already."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.serving.serving_arguments import ServingArguments


class ExternalEndpoint(Record):
    """Address of a model at an external endpoint."""

    url: str
    model: str = Field(description="its name at the endpoint")


class ServingSpec(Record):
    """One side of a comparison, to be served or queried at its endpoint."""

    name: str = Field(description="of the recipe; 'baseline' for the baseline")
    folder: str = Field(description="of the checkpoint; for an endpoint, of the tokenizer")
    arguments: ServingArguments | None = Field(description="None for an endpoint")
    ready_timeout_seconds: float = Field(description="for the server to start")
    trust_remote_code: bool = False
    draft: str | None = Field(None, description="folder of the draft checkpoint")
    endpoint: ExternalEndpoint | None = Field(None, description="None if prepare serves it")

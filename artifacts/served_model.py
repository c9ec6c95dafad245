"""Which model answers and how it is served, as stages keep it; and where it is asked."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from artifacts.serving_arguments import ServingArguments
from pipeline.core.record import Record
from pipeline.core.stage import WorkerRuntime


class ServedElsewhere(Record):
    """A model that someone else serves; another may answer there another day."""

    side: str = Field(description="baseline or candidate: a model may be judged against itself")
    url: str
    model: str = Field(description="its name there")
    session: str = Field(description="answers are kept for it alone")
    tokenizer: str = Field(description="digest: another one asks other questions")


class ServedModel(Record):
    """What says which model answers; the weights come by the stages before."""

    checkpoint: str = Field("", description="digest of the source")
    serving: ServingArguments = ServingArguments({}, {})
    engine: str = Field("", description="identity of the environment that serves")
    hardware: dict[str, Any] = Field({}, description="facts of the machine")
    trust_remote_code: bool = False
    again: str = Field("", description="distinguishes answers from those kept of the same model")
    endpoint: ServedElsewhere | None = Field(None, description="None of one that we serve")


class ServerRuntime(WorkerRuntime):
    """Where the model answers, known when its server is up."""

    url: str = ""
    model: str = Field("", description="its name there")
    socket: str | None = Field(None, description="of a server of ours")
    server_python: str = Field("", description="its interpreter, of a server of ours")
    server_log: str = Field("", description="where to look when it does not answer")
    server: dict[str, Any] = Field({}, description="facts for the record, such as ready_seconds")
    engine_version: str = Field("", description="of a server of ours")

"""The model that answers: its needs and address."""

from __future__ import annotations

from pydantic import Field

from pipeline.serving.serving_arguments import ServingArguments
from prepare.hardware import Hardware
from prepare.record import Record, SparseRecord
from prepare.stage import WorkerRuntime

SERVED_NAME = "model"  # at every server


class ExternalModel(Record):
    """A model at an external endpoint, which may change."""

    side: str = Field(description="baseline or candidate: one endpoint may be both")
    url: str
    model: str = Field(description="its name at the endpoint")
    deployment_id: str = Field(description="answers are stored for this session only")
    tokenizer: str = Field(description="digest; it determines the questions. '' without one")
    chat: bool = Field(False, description="asked by its chat API, not by text completions")


class ServedModel(Record):
    """Identity of a served model."""

    checkpoint: str = Field("", description="digest of the source")
    serving: ServingArguments = ServingArguments({}, {})
    engine: str = Field("", description="identity of the environment that serves")
    hardware: Hardware = Field(Hardware(), description="empty for an external endpoint")
    trust_remote_code: bool = False
    endpoint: ExternalModel | None = Field(None, description="None if prepare serves it")


class ServerInfo(SparseRecord, extra="allow"):
    """A server's start, and facts from the engine's log."""

    __pydantic_extra__: dict[str, str]

    ready_seconds: float = Field(0.0, description="until its first answer")
    command: list[str] | None = Field(None, description="without the interpreter")
    url: str | None = Field(None, description="of an external endpoint")
    model: str | None = Field(None, description="its name at the endpoint")


class ServerRuntime(WorkerRuntime):
    """Address of the running model."""

    url: str = ""
    model: str = Field("", description="its name at the endpoint")
    socket: str | None = Field(None, description="of our server")
    server_log: str = Field("", description="log file, to read if it does not answer")
    server: ServerInfo = ServerInfo()
    engine_version: str = Field("", description="of our server")

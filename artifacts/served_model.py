"""Which model answers and how it is served, as stages keep it; and where it is asked."""

from __future__ import annotations

from pydantic import Field

from artifacts.serving_arguments import ServingArguments
from pipeline.core.hardware import Hardware
from pipeline.core.record import Record, SparseRecord
from pipeline.core.stage import WorkerRuntime


class ExternalModel(Record):
    """A model that someone else serves; another may answer there another day."""

    side: str = Field(description="baseline or candidate: a model may be judged against itself")
    url: str
    model: str = Field(description="its name there")
    deployment_id: str = Field(description="answers are kept for it alone")
    tokenizer: str = Field(description="digest: another one asks other questions")


class ServedModel(Record):
    """What says which model answers; the weights come by the stages before."""

    checkpoint: str = Field("", description="digest of the source")
    serving: ServingArguments = ServingArguments({}, {})
    engine: str = Field("", description="identity of the environment that serves")
    hardware: Hardware = Field(Hardware(), description="nothing of one that someone else serves")
    trust_remote_code: bool = False
    endpoint: ExternalModel | None = Field(None, description="None of one that we serve")


class ServerInfo(SparseRecord, extra="allow"):
    """How a server began; beside it what its engine says in the log, by names of our own."""

    __pydantic_extra__: dict[str, str]

    ready_seconds: float = Field(0.0, description="until it had answered")
    command: list[str] | None = Field(None, description="without the interpreter")
    url: str | None = Field(None, description="of somebody's endpoint")
    model: str | None = Field(None, description="its name there")


class ServerRuntime(WorkerRuntime):
    """Where the model answers, known when its server is up."""

    url: str = ""
    model: str = Field("", description="its name there")
    socket: str | None = Field(None, description="of a server of ours")
    server_python: str = Field("", description="its interpreter, of a server of ours")
    server_log: str = Field("", description="where to look when it does not answer")
    server: ServerInfo = ServerInfo()
    engine_version: str = Field("", description="of a server of ours")

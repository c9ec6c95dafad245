"""The stage that measures a speed gate or a screened candidate."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.block import BlockParameters, LoadParameters, LoadRuntime

# Prefix of these stages' roles, before the gate's name.
ROLE = "speed."


class SpeedParameters(LoadParameters):
    """The sides to measure, and the stopping rule."""

    sides: dict[str, ServedModel] = Field(description="candidate, and baseline where it compares")

    @property
    def is_fresh(self) -> bool:
        """Whether each load has a new server start, measured by `block`."""
        return self.rule.starts == "fresh"


class SpeedRuntime(LoadRuntime):
    """The sides' endpoints, and the workload's files."""

    endpoints: dict[str, ServerRuntime] = Field({}, description="by side")
    measurement: BlockParameters | None = Field(None, description="of fresh starts: its blocks")
    arm: str = Field("", description="the candidate's name in them")


class SpeedResult(Record):
    """A measurement's summary; `loads.jsonl` has all loads."""

    units: int = Field(description="blocks")
    state: str
    seed: int = Field(description="that traffic was drawn with")
    server_runs: int = Field(
        description="of the servers, that were begun; of one that ended too soon what was whole "
        "is kept. With fresh starts, number of blocks that were begun",
    )
    arms: list[str] = Field(description="among which the order is drawn")
    arm: str = Field(description="the candidate's name among them")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")


SPEED = Stage("speed", 4, SpeedParameters, SpeedRuntime, SpeedResult)

"""A serving task: the stages that one model answers during one server start, on one node.

It is one work item. A variant that is compared with the baseline under load has the baseline's
server next to its own, or in turn: both in one serving task, so on one machine.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.stage_record import StageSpec, WorkItem
from pipeline.core.store import Store
from pipeline.environments.definition import Accelerator
from pipeline.serving.serving_spec import ServingSpec
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.evaluate.run import is_answered


class ServingTask(WorkItem):
    """Stages and their models; `prepare task run` runs it."""

    stage: Literal["serving_task"] = Field(
        "serving_task", description="where a stage's spec has its name"
    )
    store: str = Field(description="folder of the store")
    accelerator: Accelerator = Field(description="that the environments of its stages are for")
    folder: str = Field(description="of the run, for logs")
    model: ServingSpec = Field(description="who is asked")
    baseline: ServingSpec = Field(description="of whom a comparison under load needs a server")
    specs: list[StageSpec] = Field(description="in order")
    blocking: list[str] = Field(
        [],
        description="keys of the rounds that end the loads if they fail",
    )


def needs_endpoint(spec: StageSpec, store: Store) -> bool:
    """Return whether a model must answer: the kept answers may suffice."""
    if spec.stage != EVALUATE.name:
        return True
    before = (spec.inputs[role] for role in ("questions", "baseline") if role in spec.inputs)
    if any(store.find(each.stage, each.key) is None for each in before):
        return True
    return not is_answered(spec, store)

"""A node's description of itself, as a work item of `prepare task run`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.core.errors import StageError, raise_as
from pipeline.core.hardware import NodeInfo, this_node
from pipeline.core.installation import this_prepare
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import WorkItem
from pipeline.core.store import write_atomically
from pipeline.core.untrusted import MAX_RECORD_BYTES, parse_record, read_regular
from pipeline.run.executors.executor import Executor, Listener

UNREADABLE = "a node's description of itself cannot be read"
SAME_PREPARE = "every node has to have this prepare installed, of the same commit"


class NodeProbe(WorkItem):
    """A node's task, and the place of its answer."""

    stage: Literal["describe"] = Field("describe", description="where a stage's spec has its name")
    answer: str = Field(description="file that NodeInfo are written into")


def describe_here(asked: NodeProbe) -> None:
    """Answer, on the node."""
    write_atomically(Path(asked.answer), this_node().model_dump_json())


def submit_description(
    executor: Executor, asked: Sequence[ResourceRequest], store: Path, listener: Listener
) -> NodeInfo:
    """Return the description by a node that has resources for such work.

    Raises:
        PrepareError: as `Executor.find_room` and `Job.wait`.
    """
    needs = next((each for each in asked if executor.count_room(each)), asked[-1])
    place = executor.find_room(needs)
    if place is None:
        raise ValueError("an executor with a queue always has room")
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".node-", dir=store) as folder:
        task = Path(folder, "node.json")
        answer = task.with_suffix(".answer")
        task.write_text(NodeProbe(prepare=this_prepare(), answer=str(answer)).model_dump_json())
        job = place.submit(task, task.with_suffix(".log"))
        try:
            job.wait(listener)
        except BaseException:
            job.cancel()
            raise
        with raise_as(StageError, UNREADABLE, answer, SAME_PREPARE):
            content = read_regular(answer, MAX_RECORD_BYTES)
        return parse_description(content, str(answer))


def parse_description(content: bytes, where: str) -> NodeInfo:
    """Return a node's answer; raise StageError if it is malformed."""
    with raise_as(StageError, UNREADABLE, where, SAME_PREPARE, errors=ValueError):
        return parse_record(content, NodeInfo).model_copy(update={"machine": ""})

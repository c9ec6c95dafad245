"""A Ray worker's part: one work item, as a supervised child process.

Ray ends its worker when the driver ends or the task is cancelled; the supervisor then ends all
processes of the work item.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.core.hardware import this_node
from pipeline.core.process_environment import (
    NetworkAccess,
    merge_node_environment,
    stage_environment,
)
from pipeline.core.supervised_process import SupervisedProcess
from pipeline.run.executors.stage_process import needs_of, refuse_other, stage_in, start

POLL_INTERVAL_S = 0.2  # within which Ray can interrupt a task
CHUNK_BYTES = 1 << 16


def describe(prepare: str, given: Mapping[str, str]) -> str:
    """Describe this node, as JSON; raise StageError if the driver's prepare differs."""
    refuse_other(prepare)
    variables = {**os.environ, **given}
    if not variables.get("CUDA_VISIBLE_DEVICES"):
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all GPUs from a task without any
    return this_node(variables).model_dump_json()


def run(
    prepare: str, task: str, log: str, given: Mapping[str, str], gpus: int = 0
) -> Iterator[bytes | int]:
    """Run the work item; yield its events as lines, then its exit code.

    Raises StageError if the driver's prepare differs.

    Args:
        gpus: number that Ray reserved; it lists them in the worker's CUDA_VISIBLE_DEVICES.
    """
    refuse_other(prepare)
    file, variables = Path(task), merge_node_environment(_node_variables(), given)
    if gpus == 0:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    # The node may have to build the stage's environment first.
    variables = stage_environment(
        variables, stage_in(file), [*needs_of(file), NetworkAccess.PACKAGES]
    )
    with start(file, Path(log), variables) as process:
        yield from _lines_of(process)
        code = process.wait()
    yield code


def _node_variables() -> dict[str, str]:
    """Return the raylet's variables: Ray sets OMP_NUM_THREADS by the reserved cores."""
    variables = dict(os.environ)
    with suppress(OSError):
        of_raylet = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        if not any(each.startswith(b"OMP_NUM_THREADS=") for each in of_raylet):
            variables.pop("OMP_NUM_THREADS", None)
    return variables


def _lines_of(process: SupervisedProcess) -> Iterator[bytes]:
    """Yield its output lines; never block for longer than a moment, so Ray can interrupt it."""
    descriptor, rest = process.output.fileno(), b""
    while True:
        if not select.select([descriptor], [], [], POLL_INTERVAL_S)[0]:
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(None, lines):  # noqa: UP028  # Ray sends to what yields; a filter takes none
            yield line
        if not chunk:
            return

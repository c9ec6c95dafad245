"""Quick real stages for a cluster to run, and their worker, which waits until it is let go.

The stage is `questions` of the carried texts, run by a real worker. Its interpreter is a script
that writes down where it runs, waits for a file, and only then becomes Python.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.run_record import StageReport
from eval_gates.suites.rouge import RougeTask
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import Store
from pipeline.stages import newest_revision

WORKER = """#!/bin/sh
echo "$$ ${{CUDA_VISIBLE_DEVICES-unset}}" >> {begun}
while [ ! -e {gate} ]; do sleep 0.1; done
exec {python} "$@"
"""

DRIVER = """#!/bin/sh
{only_where} || exit 1
name="NVIDIA H100 80GB HBM3"
case "$1" in
-L) for n in 0 1; do echo "GPU $n: $name (UUID: GPU-$n)"; done ;;
--query-gpu=name,*) for n in 0 1; do echo "$name, 590.44.01, 81559 MiB"; done ;;
--query-gpu=compute_cap) echo 9.0; echo 9.0 ;;
esac
"""


@dataclass
class Heard:
    """Keeps what a piece of work tells of itself."""

    notes: list[str] = field(default_factory=list)

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Kept by nobody."""

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage_ended(self, stage: StageReport) -> None:
        """None of them has several."""


class TinyStages:
    """A store that all nodes share, and stages in it.

    Args:
        folder: that all nodes see.
        store: None: in that folder.
    """

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder
        self.store = store or Store(folder / "store")
        self._gate = folder / "gate"
        self._begun = folder / "begun"
        self._python = folder / "python"
        self._python.write_text(
            WORKER.format(begun=self._begun, gate=self._gate, python=sys.executable)
        )
        self._python.chmod(0o755)

    def task(self, name: str, **runtime: str) -> Path:
        """The file of a stage that has not been run before."""
        parameters = {
            "suite": RougeTask().model_dump(),
            "source": {"kind": "builtin"},
            "seed": sum(map(ord, name)),
        }
        spec = StageSpec(
            stage="questions",
            variant=name,
            key=stage_key("questions", newest_revision("questions"), parameters, {}),
            parameters=parameters,
            inputs={},
            runtime={"python": str(self._python), **runtime},
            store=str(self.store.root),
        )
        file = self.folder / f"{name}.json"
        file.write_text(spec.model_dump_json())
        return file

    def record(self, task: Path) -> StageRecord | None:
        """What the stage left, if it is over."""
        spec = StageSpec.model_validate_json(task.read_bytes())
        return self.store.find(spec.stage, spec.key)

    def let_go(self) -> None:
        """All workers go on, and those that come need not wait."""
        self._gate.touch()

    def begun(self) -> list[list[str]]:
        """Process id and GPUs of each worker that has begun so far."""
        lines = self._begun.read_text().splitlines() if self._begun.exists() else []
        return [line.split(" ") for line in lines]

    def wait_begun(self, count: int, *ends: Future[None]) -> list[list[str]]:
        """The workers, once there are so many; raises what ended a wait for one before."""

        def are_begun() -> bool:
            for end in ends:
                if end.done():
                    end.result()
            return len(self.begun()) >= count

        wait_until(are_begun)
        return self.begun()

    def processes(self) -> list[int]:
        """Running processes, on all nodes, that have to do with these stages."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.folder) in command:
                found.append(int(entry.name))
        return found


def write_driver(folder: Path, only_where: str = "true") -> Path:
    """An `nvidia-smi` in the folder that tells of two H100, where that command succeeds."""
    program = folder / "nvidia-smi"
    program.write_text(DRIVER.format(only_where=only_where))
    program.chmod(0o755)
    return folder


def wait_until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Come back as soon as it holds; raises AssertionError where it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)

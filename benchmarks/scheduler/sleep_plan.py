"""Plans of stages that sleep, run by the real scheduler on a real store and executor."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sitecustomize  # noqa: F401 - the stage `sleep_stage`
from pipeline.stages.sleep_stage import SLEEP_STAGE, SleepParameters, SleepRuntime

from pipeline.core.errors import PrepareError
from pipeline.core.events import NullProgress
from pipeline.core.remote_store import cache_folder
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.run.executors import Executor, ExecutorOptions
from pipeline.run.executors.local import LocalOptions
from pipeline.run.run_recorder import RecordingProgress, RunRecorder
from pipeline.run.scheduler import ScheduledWork, Scheduler
from pipeline.run.stage_runner import SubmittedStageRunner

STAGES = Path(__file__).parent
ON_A_GPU, ALL_CORES, LITTLE = (
    ResourceRequest(gpus=1),
    ResourceRequest(cpus="all"),
    ResourceRequest(),
)


@dataclass(frozen=True)
class ExecutionSite:
    """What plans run on.

    Attributes:
        options: of the executor.
        store: URL in an object store; None for a folder.
    """

    options: ExecutorOptions = field(default_factory=LocalOptions)
    store: str | None = None

    def open(self) -> Executor:
        """Return the executor."""
        return self.options.open()


@dataclass(frozen=True)
class SleepStage:
    """A stage of a plan."""

    name: str
    seconds: float
    needs: ResourceRequest
    after: tuple[str, ...] = ()


class SleepPlan:
    """Naps with their keys, each listed after those before it, and a run of them.

    Args:
        folder: of the store and the journal.
        cache: of the store, where it is an object store, on a node of that name.
    """

    def __init__(
        self,
        folder: Path,
        sleeps: Sequence[SleepStage],
        site: ExecutionSite,
        *,
        cache: str = "node",
    ) -> None:
        root = folder / "store"
        if site.store:
            root = cache_folder(f"{site.store}/{folder.name}", folder / cache)
        self.store, self.journal, self.site = Store(root), folder / "journal", site
        self.sleeps = sleeps
        self.specs: dict[str, StageSpec] = {}
        for sleep in sleeps:
            self.specs[sleep.name] = SLEEP_STAGE.spec(
                "sleeps",
                SleepParameters(name=sleep.name, seconds=sleep.seconds),
                {name: self.specs[name] for name in sleep.after},
                SleepRuntime(journal=str(self.journal)),
                self.store.root,
            )

    def run(self, executor: Executor) -> None:
        """As a run of `prepare model` does it, to its end; raises PrepareError."""
        log = RunRecorder(self.store, "model", {})
        progress = RecordingProgress(NullProgress(), log)
        stages = SubmittedStageRunner(self.store, executor, lambda _: Path(), log, progress)

        def find_work(running: Collection[ScheduledWork]) -> list[ScheduledWork]:
            done, ready = set(), []
            for sleep in self.sleeps:
                if done.issuperset(sleep.after):
                    if stages.reuse(self.specs[sleep.name]):
                        done.add(sleep.name)
                    else:
                        ready.append(sleep)
            return [
                ScheduledWork(sleep.name, lambda spec=self.specs[sleep.name]: spec, sleep.needs)  # type: ignore[misc]
                for sleep in ready
            ]

        Scheduler(stages).run(find_work, raise_on)
        log.finish("finished", 0)

    def whole(self) -> dict[str, bool]:
        """Return the finished stages, and whether their files match their records."""
        found = {name: self.store.find(spec.stage, spec.key) for name, spec in self.specs.items()}
        return {
            name: SLEEP_STAGE.result_of(record).digest == self._digest(self.specs[name])
            for name, record in found.items()
            if record is not None
        }

    def events(self) -> Counter[tuple[str, str]]:
        """How often each stage began and ended, by its key."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return Counter((key, what) for key, what in map(str.split, lines))  # type: ignore[misc]

    def _digest(self, spec: StageSpec) -> str:
        folder, digest = self.store.stage_folder(spec.stage, spec.key), hashlib.sha256()
        for file in sorted(folder.glob("*.txt")):
            digest.update(file.read_bytes())
        return digest.hexdigest()


def raise_on(work: ScheduledWork, error: PrepareError | None) -> None:
    """End the run: it needs this work."""
    if error is not None:
        raise error


@contextlib.contextmanager
def make_node(gpus: int) -> Iterator[Path]:
    """Return a folder, and a node of our own with so many GPUs, listed by a script."""
    with tempfile.TemporaryDirectory(prefix="schedule-") as name:
        folder = Path(name)
        program = folder / "nvidia-smi"
        lines = [f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})" for n in range(gpus)]
        listed = "\n".join(lines)
        program.write_text(f'#!/bin/sh\ncase "$*" in -L) echo "{listed}";; *) exit 2;; esac\n')
        program.chmod(0o755)
        (folder / "locks").mkdir()
        before = dict(os.environ)
        os.environ["PATH"] = f"{folder}:{before['PATH']}"
        os.environ["PREPARE_NODE_LOCKS"] = str(folder / "locks")
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            yield folder
        finally:
            os.environ.clear()
            os.environ.update(before)

"""Runs a serving task on this machine: checks the node, starts servers, asks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.run_record import StageReport
from pipeline.core.errors import PrepareError, ServingError
from pipeline.core.events import EventWriter
from pipeline.core.hardware import Hardware, NodeInfo, this_node
from pipeline.core.interruption import hold_interruptions
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import Store
from pipeline.environments.compile_caches import open_caches
from pipeline.environments.definition import Accelerator
from pipeline.environments.environment import check_planned_environment, identity, interpreters
from pipeline.environments.settings import Settings, load_settings
from pipeline.plan.plan import has_failed
from pipeline.run.endpoints import Endpoints, LocalServers
from pipeline.run.executors.work_events import ProgressListener
from pipeline.run.serving_task import ServingTask, needs_endpoint
from pipeline.run.stage_runner import StageRunner
from pipeline.serving.served_model import ServedModel
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.screen import SCREEN
from pipeline.stages.speed import SPEED
from pipeline.stages.speed.run import course_of
from recipes.engines import find_engine


class RemoteStageLog:
    """Reports the ends of stages to the run's record."""

    def __init__(self, folder: Path, events: EventWriter) -> None:
        self.folder = folder
        self._events = events

    def stage(self, stage: StageReport) -> None:
        self._events.write({"event": "stage", **stage.model_dump(mode="json")})

    def note_running(self, stages: Sequence[str], *, over: bool = False) -> None:
        """Write nothing: the run has recorded all stages of the task."""


def run_serving_task(task: ServingTask, store: Store, events: EventWriter) -> None:
    """Run the serving task on this machine, whose resources are reserved.

    Args:
        task: environments that are missing are built here.

    Raises:
        ServingError: the hardware differs from the evidence's.
        EnvironmentBuildError: this node's settings name another engine.
        PrepareError: as `ServingTaskRunner.run`.
    """
    check_hardware(task, store)
    settings, accelerator = load_settings(store.root), task.accelerator
    check_engines(task, store, settings)
    python_of = interpreters(accelerator, settings, events)

    def caches_of(name: str) -> Mapping[str, str]:
        return open_caches(settings.home, identity(name, accelerator, settings), events)

    log = RemoteStageLog(Path(task.folder), events)
    stages = StageRunner(store, python_of, log, ProgressListener(events), accelerator)
    ServingTaskRunner(stages, LocalServers(stages, caches_of)).run(task)


def check_hardware(task: ServingTask, store: Store) -> None:
    """Check that a model is served on its verdict's hardware: an executor may choose any node.

    Raises:
        ServingError: this node is another kind of machine than planned.
    """
    accelerator = task.accelerator
    node = this_node(with_gpus=accelerator is Accelerator.CUDA)
    here = node.hardware(accelerator)
    asking = [spec for spec in task.specs if needs_endpoint(spec, store)]
    for planned in (served.hardware for spec in asking for served in served_in(spec)):
        if planned not in (Hardware(), here):
            then, now = planned.model_dump(), here.model_dump()
            parts = sorted(k for k in {*then, *now} if then.get(k) != now.get(k))
            raise other_node(
                node, ", ".join(f"{k} is {now.get(k)}, not {then.get(k)}" for k in parts)
            )
    for spec in (each for each in asking if each.stage == SPEED.name):
        machine = SPEED.parameters_of(spec).machine
        if machine not in ("", node.machine, node.kind(accelerator)):
            raise other_node(node, f"it is {node.kind(accelerator)}, not {machine}")


def check_engines(task: ServingTask, store: Store, settings: Settings) -> None:
    """Check that a model is served by its verdict's engine.

    Raises:
        EnvironmentBuildError: this node has another.
    """
    asking = [spec for spec in task.specs if needs_endpoint(spec, store)]
    for served in (each for spec in asking for each in served_in(spec)):
        name = find_engine(served.serving.engine).environment
        check_planned_environment(name, task.accelerator, settings, served.engine)


def other_node(node: NodeInfo, how: str) -> ServingError:
    """Return the error for a node that differs from the planned one."""
    return ServingError(
        f"this node is not what the verdict would be about: {how}",
        where=f"node {node.name}",
        hint="have the executor choose nodes of one kind (docs/how-to/ray-and-slurm.md)",
    )


def served_in(spec: StageSpec) -> list[ServedModel]:
    """Models that a stage queries; an external endpoint has no hardware."""
    if spec.stage == SPEED.name:
        return list(SPEED.parameters_of(spec).sides.values())
    if spec.stage == EVALUATE.name:
        return [EVALUATE.parameters_of(spec)]
    return [SCREEN.parameters_of(spec)]


class ServingTaskRunner:
    """Holds serving tasks, one after another."""

    def __init__(self, stages: StageRunner, endpoints: Endpoints) -> None:
        self._stages = stages
        self._endpoints = endpoints

    def run(self, task: ServingTask) -> None:
        """Run the stages, with servers from the first one that needs them; then stop these.

        It ends early if the model is broken, by the record of that stage.

        Raises:
            PrepareError: a server did not start or died, or a stage failed.
        """
        try:
            for spec in task.specs:
                if not self._is_spared(task, spec):
                    record = self._run(task, spec)
                    if spec.stage == SCREEN.name and SCREEN.result_of(record).broken:
                        return
        finally:
            # We may be told to end several times, and the servers are to be gone before us.
            with hold_interruptions():
                self._endpoints.close()

    def _is_spared(self, task: ServingTask, spec: StageSpec) -> bool:
        found = (self._stages.store.find(EVALUATE.name, key) for key in task.blocking)
        return spec.stage == SPEED.name and any(map(has_failed, found))

    def _run(self, task: ServingTask, spec: StageSpec) -> StageRecord:
        if not needs_endpoint(spec, self._stages.store):
            return self._stages.run(spec)
        try:
            record = self._stages.run(spec, lambda: self._open(task, spec))
        except PrepareError:
            self._endpoints.check_alive()  # a dead server is the better explanation
            raise
        self._endpoints.check_alive()  # else something else may have answered
        if is_fresh(spec):
            self._endpoints.close()
        return record

    def _open(self, task: ServingTask, spec: StageSpec) -> dict[str, Any]:
        """Return the servers that the stage asks; a speed stage may have more than one."""
        if spec.stage != SPEED.name:
            return self._endpoints.open(task.model)
        sides = {"baseline": task.baseline, "candidate": task.model}
        wanted: Iterable[str] = SPEED.parameters_of(spec).sides
        if is_fresh(spec):
            self._endpoints.check_alive()
            self._endpoints.close()
            wanted = course_of(spec, self._stages.store).next_sides()
        return {"endpoints": {name: self._endpoints.open(sides[name]) for name in wanted}}


def is_fresh(spec: StageSpec) -> bool:
    """Whether each load of the stage has a new server start."""
    return spec.stage == SPEED.name and SPEED.parameters_of(spec).is_fresh

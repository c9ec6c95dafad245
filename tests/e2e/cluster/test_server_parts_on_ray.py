"""A server's parts on several nodes of a real Ray cluster begin and end together.

What is started in the engine's place only waits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ray_nodes import RayNodes
from tiny_stages import Heard, wait_until

from artifacts.model_to_serve import ModelToServe
from artifacts.served_model import ServedModel
from artifacts.serving_arguments import ServingArguments
from artifacts.stages import newest_revision
from pipeline.core.errors import ServingError, StageError
from pipeline.core.events import Silent
from pipeline.core.needs import Needs
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageSpec
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.run.executors.ray import RayExecutor
from pipeline.run.executors.ray_job import RayJob
from pipeline.run.sitting import Sitting

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(300)]

COUNT = 3
NEEDS = Needs(nodes=COUNT, cpus="all")
ENGINE = """#!/bin/sh
case "$*" in
*--node-rank*) exec {python} -c "import time; time.sleep(600)" in {folder} "$@" ;;
*) exec {engine} "$@" ;;
esac
"""
DRIVER = """
import sys
from pathlib import Path
from tiny_stages import Heard
from pipeline.core.needs import Needs
from pipeline.run.executors.ray import RayOptions
needs = Needs.model_validate_json(sys.argv[3])
place = RayOptions(address=sys.argv[1]).open().find_room(needs)
place.submit(Path(sys.argv[2]), Path(sys.argv[2]).with_suffix(".log")).wait(Heard())
"""


class Spread:
    """A sitting whose server is spread over nodes, and never ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = folder / "store" / "runs" / "r" / "stages" / "baseline.sitting.json"
        self.task.parent.mkdir(parents=True)
        serving = ServingArguments({"tensor-parallel-size": COUNT, "nnodes": COUNT}, {})
        model = ModelToServe(
            name="baseline", folder=str(folder), arguments=serving, ready_timeout_seconds=500
        )
        parameters = ServedModel(serving=serving).model_dump(mode="json")
        spec = StageSpec(
            stage="coherence",
            variant="baseline",
            key=stage_key("coherence", newest_revision("coherence"), parameters, {}),
            parameters=parameters,
            inputs={},
            runtime={},
            store=str(folder / "store"),
        )
        sitting = Sitting(
            store=spec.store,
            accelerator=Accelerator.CPU,
            folder=str(self.task.parents[1]),
            model=model,
            baseline=model,
            specs=[spec],
        )
        self.task.write_text(sitting.model_dump_json())

    def parts(self) -> dict[int, int]:
        """Process of each part's engine, by the part's number."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if "--node-rank" in words and words[1] == "-c" and str(self.folder) in words:
                    found[int(words[words.index("--node-rank") + 1])] = int(entry.name)
        return found

    def wait_until_all_are_up(self, but: dict[int, int] | None = None) -> dict[int, int]:
        """The parts, once all are there; none of them one of those before."""
        before = {*(but or {}).values()}
        wait_until(lambda: len(found := self.parts()) == COUNT and not before & {*found.values()})
        return self.parts()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """One more than a server is spread over; what they start for the engine waits."""
    folder = tmp_path_factory.mktemp("engine")
    serving = ensure("serve", Accelerator.CPU, load_settings(), Silent())
    engine = folder / "python"
    engine.write_text(ENGINE.format(python=sys.executable, engine=serving.python, folder=folder))
    engine.chmod(0o755)
    settings = folder / "settings.yaml"
    settings.write_text(json.dumps({"environments": {"serve": {"python": str(engine)}}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREPARE_SETTINGS", str(settings))
        made = RayNodes(COUNT + 1)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def doing(executor: RayExecutor, spread: Spread) -> Iterator[tuple[RayJob, Future[None], Heard]]:
    """The work, its end, and what it tells."""
    heard = Heard()
    place = executor.find_room(NEEDS)
    job = place.submit(spread.task, spread.task.with_suffix(".log"))
    with ThreadPoolExecutor() as threads:
        try:
            yield job, threads.submit(job.wait, heard), heard
        finally:
            job.cancel()
            place.release()


def test_a_killed_driver_leaves_no_part(nodes: RayNodes, tmp_path: Path) -> None:
    spread = Spread(tmp_path)
    command = [sys.executable, "-c", DRIVER, nodes.address, str(spread.task)]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([*command, NEEDS.model_dump_json()], env=here) as driver:
        spread.wait_until_all_are_up()
        driver.kill()
    gone: Callable[[], bool] = lambda: spread.parts() == {}  # noqa: E731
    wait_until(gone)


def test_each_part_is_on_a_node_of_its_own_and_all_end(
    nodes: RayNodes, executor: RayExecutor, tmp_path: Path
) -> None:
    spread = Spread(tmp_path)
    with doing(executor, spread) as (job, end, _):
        parts = spread.wait_until_all_are_up()
        assert len({nodes.node_above(process) for process in parts.values()}) == COUNT
        job.cancel()
        assert spread.parts() == {}
        with pytest.raises(StageError, match="cancelled"):
            end.result(timeout=60)


@pytest.mark.parametrize("part", [0, 1], ids=["who answers", "another"])
def test_with_one_node_lost_all_is_begun_anew(
    nodes: RayNodes, executor: RayExecutor, tmp_path: Path, part: int
) -> None:
    spread = Spread(tmp_path)
    with doing(executor, spread) as (_, end, heard):
        before = spread.wait_until_all_are_up()
        nodes.kill(nodes.node_above(before[part]))
        spread.wait_until_all_are_up(but=before)
        nodes.add()
        assert not end.done()
        assert any("lost" in note for note in heard.notes)
    assert spread.parts() == {}


@pytest.mark.parametrize("part", [0, 2], ids=["who answers", "another"])
def test_with_one_part_s_engine_dead_all_end_with_its_error(
    nodes: RayNodes, executor: RayExecutor, tmp_path: Path, part: int
) -> None:
    spread = Spread(tmp_path)
    with doing(executor, spread) as (_, end, _):
        os.kill(spread.wait_until_all_are_up()[part], signal.SIGKILL)
        with pytest.raises(ServingError, match="killed"):
            end.result(timeout=90)
        assert spread.parts() == {}

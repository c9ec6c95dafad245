r"""The scheduler's use of several GPUs, its overhead per stage, and the cost of kills.

Stages sleep instead of working (`scheduler/`). All else is real: scheduler, store, node locks,
processes and signals. GPUs are an `nvidia-smi` that lists them, or what Ray's nodes are told.

- *efficiency*: R recipes with the stages of a run, on G GPUs: the time that the same list schedule
  would take if nothing but the sleeping took any (`capacity/timeline.py`), by the measured time. As
  in a run a node has been asked before what it is, which starts what is started there once a run;
  that time is told, and the efficiency with it.
- *overhead*: from the submission of a stage to its record in the store, less its sleep; the median.
- *kills*: plans of 40 stages; at random moments one process is killed, and the command given again
  (`scheduler/fault_injection.py`). Every stage has to be done in the end, with all of its files,
  none may be lost that was done, no process may be left, and at most one stage begins again
  for a kill.

Ends in one line of JSON; exit code 1 where a target is missed. `--kills 1000` is the long one; with
`--book FILE` it goes on where it was stopped.

    python benchmarks/scheduler_overhead.py [--gpus 1 2 4 8] [--recipes 8] [--stages 50] \
        [--kills 1000] [--book FILE] [--executor local|ray] \
        [--store s3://bucket/prefix | --s3-server]

`--executor ray` starts a cluster on this machine. `--s3-server` starts a SeaweedFS, which is killed
as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STAGES = ROOT / "benchmarks" / "scheduler"
CLUSTER = ROOT / "tests" / "e2e" / "cluster"
sys.path[:0] = [str(STAGES), str(CLUSTER), str(CLUSTER.parent), str(CLUSTER.parent.parent)]
os.environ["PYTHONPATH"] = str(STAGES)  # of all that we start
from fault_injection import FaultInjector, FaultTarget, measure_kills  # noqa: E402
from sleep_plan import LITTLE, ON_A_GPU, ExecutionSite, SleepPlan, SleepStage, make_node  # noqa: E402

from pipeline.capacity.timeline import ScheduledTask, play  # noqa: E402
from pipeline.core.events import NullProgress  # noqa: E402
from pipeline.core.object_store import check_url  # noqa: E402
from pipeline.run.executors.ray import RayOptions  # noqa: E402
from pipeline.run.executors.work_events import ProgressListener  # noqa: E402
from pipeline.run.run_recorder import RecordingProgress  # noqa: E402

MIN_EFFICIENCY = 0.9
MAX_OVERHEAD_SECONDS = {"local": 1.0, "ray": 3.0}  # stages take minutes
QUANTIZE_SECONDS, CHECK_SECONDS, ASK_SECONDS = 4.0, 0.3, 6.0
SECONDS_AWAY = 1.0  # of a server of the store that was killed


def recipes(number: int) -> list[SleepStage]:
    """Return a run: quantize and check, ask the baseline, then each variant, judge it."""
    names = [f"recipe-{n}" for n in range(number)]
    made = [SleepStage(f"{n} quantize", QUANTIZE_SECONDS, ON_A_GPU) for n in names]
    checked = [SleepStage(f"{n} check", CHECK_SECONDS, LITTLE, (f"{n} quantize",)) for n in names]
    baseline = SleepStage("baseline asked", ASK_SECONDS, ON_A_GPU)
    before = ("baseline asked",)
    asked = [
        SleepStage(f"{n} asked", ASK_SECONDS, ON_A_GPU, (*before, f"{n} check")) for n in names
    ]
    judged = [SleepStage(f"{n} judge", 0.0, LITTLE, (f"{n} asked",)) for n in names]
    return [baseline, *made, *checked, *asked, *judged]


def measure_efficiency(number: int, gpus: int, asked: argparse.Namespace) -> dict[str, Any]:
    """R recipes on G GPUs."""
    with make_node(gpus) as folder, site_of(asked, nodes=1, gpus=gpus) as site:
        sleeps, executor = recipes(number), site.open()
        plan = SleepPlan(folder, sleeps, site)
        pieces = [
            ScheduledTask(sleep.name, sleep.needs, sleep.seconds, sleep.after) for sleep in sleeps
        ]
        allowed = play(pieces, executor.count_room, gpus).wall_seconds or 0.0
        began = time.perf_counter()
        executor.describe_node([ON_A_GPU], folder, ProgressListener(NullProgress()))
        started = time.perf_counter()
        plan.run(executor)
        ended = time.perf_counter()
        if len(plan.whole()) < len(sleeps):
            raise SystemExit("not all is done")
    return {
        "recipes": number,
        "gpus": gpus,
        "seconds": round(ended - started, 3),
        "allowed_seconds": round(allowed, 3),
        "efficiency": round(allowed / (ended - started), 4),
        "seconds_to_describe": round(started - began, 3),
        "efficiency_with_that": round(allowed / (ended - began), 4),
    }


def measure_overhead(number: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One stage after another, each from its submission until its record can be found."""
    with make_node(0) as folder, site_of(asked, nodes=1, gpus=0) as site:
        plan = SleepPlan(folder, [SleepStage(str(n), 0.0, LITTLE) for n in range(number + 1)], site)
        executor, listener = site.open(), RecordingProgress(NullProgress(), _NoLog())  # type: ignore[arg-type]
        visible, ended = [], []
        for number_of, spec in enumerate(plan.specs.values()):
            task = folder / f"{number_of}.json"
            task.write_text(spec.model_dump_json())
            started = time.perf_counter()
            place = executor.find_room(LITTLE)
            if place is None:
                raise SystemExit("there is no room on this node")
            job = place.submit(task, folder / "log")
            waiting = threading.Thread(target=job.wait, args=(listener,))
            waiting.start()  # as the scheduler does
            while plan.store.find(spec.stage, spec.key) is None:
                time.sleep(0.0005)
            visible.append(time.perf_counter() - started)
            waiting.join()
            place.release()
            ended.append(time.perf_counter() - started)
    visible, ended = visible[1:], ended[1:]  # with the first, what it is forked from was started
    return {
        "stages": len(visible),
        "median_seconds": round(statistics.median(visible), 4),
        "p95_seconds": round(statistics.quantiles(visible, n=20)[-1], 4),
        "median_seconds_to_exit": round(statistics.median(ended), 4),
    }


class _NoLog:
    def stage(self, stage: object) -> None: ...

    def note(self, text: str) -> None: ...


@contextmanager
def site_of(asked: argparse.Namespace, *, nodes: int, gpus: int) -> Iterator[ExecutionSite]:
    """Yield the requested executor; this process is a cluster's driver."""
    if asked.executor == "local":
        yield ExecutionSite(store=asked.store)
        return
    from ray_nodes import RayNodes

    cluster = RayNodes(nodes, cpus=gpus + 4, gpus=gpus)
    try:
        yield ExecutionSite(RayOptions(address=cluster.address), asked.store)
    finally:
        cluster.close()


@contextmanager
def killing_of(asked: argparse.Namespace) -> Iterator[FaultInjector]:
    """Where plans are run that are killed, and what is killed in addition to their processes."""
    with ExitStack() as opened:
        victims: dict[str, FaultTarget] = {}
        options, store, roots = ExecutionSite().options, asked.store, _no_roots
        if asked.s3_server:
            store, victims["server"] = opened.enter_context(_s3_server())
        if asked.executor == "ray":
            from ray_nodes import RayNodes

            cluster = RayNodes(2)
            opened.callback(cluster.close)
            options, roots = RayOptions(address=cluster.address), lambda: list(cluster.raylets())

            def mend(raylet: int) -> None:
                cluster.kill(cluster.raylets()[raylet])  # the node's other processes, too
                cluster.add()

            victims["agent"] = FaultTarget(roots, mend)
            victims["worker"] = FaultTarget(lambda: _workers(roots()), lambda _: None)
        yield FaultInjector(ExecutionSite(options, store), victims, roots)


def _no_roots() -> list[int]:
    return []


def _workers(raylets: Sequence[int]) -> list[int]:
    from fault_injection import descendants

    return [pid for pid, kind in descendants(raylets) if kind == "worker"]


@contextmanager
def _s3_server() -> Iterator[tuple[str, FaultTarget]]:
    """Start a SeaweedFS; yield the URL of a store in it, and how it is killed."""
    from s3_server import BUCKET, S3Server, install

    with tempfile.TemporaryDirectory(prefix="s3-") as folder:
        server = S3Server(install(Path(folder)), Path(folder))
        os.environ.update(server.variables)
        server.start()

        def find() -> list[int]:
            return [server.pid] if server.is_up else []

        def mend(_: int) -> None:
            server.stop()
            time.sleep(SECONDS_AWAY)
            server.start()

        try:
            yield f"s3://{BUCKET}/kills", FaultTarget(find, mend)
        finally:
            server.stop()


def main() -> int:
    """Measure, print, and say by the exit code whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--executor", choices=["local", "ray"], default="local")
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--recipes", type=int, default=8)
    parser.add_argument("--stages", type=int, default=50, help="whose overhead is measured")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--book", type=Path, help="what became of each plan; goes on with it")
    parser.add_argument("--store", help="URL in an object store, instead of a folder")
    parser.add_argument("--s3-server", action="store_true", help="of the kills: one of our own")
    asked = parser.parse_args()
    if asked.store:
        check_url(asked.store, "--store")
    found: dict[str, Any] = {
        "executor": asked.executor,
        "store": asked.store or ("an S3 server" if asked.s3_server else "a folder"),
        "efficiency": [],
    }
    for gpus in asked.gpus:
        found["efficiency"].append(measure_efficiency(asked.recipes, gpus, asked))
        print(found["efficiency"][-1], flush=True)
    met = [each["efficiency"] >= MIN_EFFICIENCY for each in found["efficiency"]]
    if asked.stages:
        found["overhead"] = measure_overhead(asked.stages, asked)
        print(found["overhead"], flush=True)
        if not asked.store:  # the target is of a folder
            most = MAX_OVERHEAD_SECONDS[asked.executor]
            met.append(found["overhead"]["median_seconds"] < most)
    if asked.kills:
        multiprocessing.set_start_method("forkserver")
        multiprocessing.set_forkserver_preload(["fault_injection"])
        with tempfile.TemporaryDirectory() as folder, killing_of(asked) as killing:
            book = asked.book or Path(folder) / "book"
            found["kills"] = measure_kills(asked.kills, killing, book)
        print(found["kills"], flush=True)
        met.append(not found["kills"]["plans_with_faults"])
    found["targets_met"] = all(met)
    print(json.dumps(found))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

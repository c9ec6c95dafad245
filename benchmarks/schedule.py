r"""What the scheduler makes of several GPUs, what a stage costs beside its work, what kills cost.

Stages sleep instead of working (`naps/`); all else is real: scheduler, store, locks of the node,
processes and signals. GPUs are an `nvidia-smi` that lists them.

- *efficiency*: R recipes with the stages of a run, on G GPUs: the time that the same list schedule
  would take if nothing but the sleeping took any (`forecast/timeline.py`), by the measured time.
- *overhead*: from the submission of a stage to its record in the store, less its sleep; the median.
- *kills*: plans of 40 stages; at random moments the driver, a stage, its guard, or what stages are
  forked from is killed, and the command given again. Every stage has to be done in the end, with
  all of its files, no process may be left, and of the plan's one stage at a time at most one begins
  again for a kill.

Ends in one line of JSON; exit code 1 where a target is missed. `--kills 1000` is the long one.

    python benchmarks/schedule.py [--gpus 1 2 4 8] [--recipes 8] [--stages 50] [--kills 1000] \
        [--store s3://bucket/prefix]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAPS = Path(__file__).parent / "naps"
sys.path.insert(0, str(NAPS))
import sitecustomize  # noqa: E402, F401 - the stage `nap`
from artifacts.stages.nap import NAP, NapParameters, NapRuntime  # noqa: E402

from pipeline.core.errors import PrepareError  # noqa: E402
from pipeline.core.events import Silent  # noqa: E402
from pipeline.core.needs import Needs  # noqa: E402
from pipeline.core.object_store import check_url  # noqa: E402
from pipeline.core.origin import cache_folder  # noqa: E402
from pipeline.core.stage_record import StageSpec  # noqa: E402
from pipeline.core.store import Store  # noqa: E402
from pipeline.forecast.timeline import Piece, play  # noqa: E402
from pipeline.run.executors.local import LocalExecutor  # noqa: E402
from pipeline.run.run_log import NotingProgress, RunLog  # noqa: E402
from pipeline.run.schedule import Schedule, Work  # noqa: E402
from pipeline.run.stage_runner import StageRunner  # noqa: E402

LEAST_EFFICIENCY = 0.9
MOST_OVERHEAD_SECONDS = 0.05
STAGES_OF_A_PLAN = 40
SECONDS_TO_QUANTIZE, SECONDS_TO_CHECK, SECONDS_TO_ASK = 4.0, 0.3, 6.0
ON_A_GPU, ALL_CORES, LITTLE = Needs(gpus=1), Needs(cpus="all"), Needs()
LONGEST_TINY_NAP = 0.03
STORE_VARIABLE = "SCHEDULE_STORE"  # that a driver of ours is told
KINDS = ("driver", "stage", "guard", "forks")
MEAN_SECONDS_TO_KILL = 0.7


@dataclass(frozen=True)
class Nap:
    """A stage of a plan."""

    name: str
    seconds: float
    needs: Needs
    after: tuple[str, ...] = ()


class Plan:
    """Naps with their keys, and a run of them.

    Args:
        folder: of the store and the journal.
    """

    def __init__(self, folder: Path, naps: Sequence[Nap]) -> None:
        root = folder / "store"
        if url := os.environ.get(STORE_VARIABLE):
            root = cache_folder(f"{url}/{folder.name}", folder)
        self.store, self.journal = Store(root), folder / "journal"
        self.naps = naps
        self.specs: dict[str, StageSpec] = {}
        for nap in naps:
            self.specs[nap.name] = NAP.spec(
                "naps",
                NapParameters(name=nap.name, seconds=nap.seconds),
                {name: self.specs[name] for name in nap.after},
                NapRuntime(journal=str(self.journal)),
                self.store.root,
            )

    def run(self) -> None:
        """As a run of `prepare model` does it, to its end; raises PrepareError."""
        log = RunLog(self.store, "model", {})
        progress = NotingProgress(Silent(), log)
        stages = StageRunner(self.store, LocalExecutor(), lambda _: Path(), log, progress)

        def find_work(running: Collection[Work]) -> list[Work]:
            done = {name for name, spec in self.specs.items() if stages.reuse(spec)}
            return [
                Work(nap.name, lambda spec=self.specs[nap.name]: spec, nap.needs)  # type: ignore[misc]
                for nap in self.naps
                if nap.name not in done and done.issuperset(nap.after)
            ]

        Schedule(stages).run(find_work, raise_on)
        log.finish("finished", 0)

    def undone(self) -> list[str]:
        """Stages without a record, or with other files than it tells of."""
        return [name for name, spec in self.specs.items() if not self._is_whole(spec)]

    def events(self) -> Counter[tuple[str, str]]:
        """How often each stage began and ended, by its key."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return Counter((key, what) for key, what in map(str.split, lines))  # type: ignore[misc]

    def _is_whole(self, spec: StageSpec) -> bool:
        import hashlib

        record = self.store.find(spec.stage, spec.key)
        if record is None:
            return False
        folder, digest = self.store.stage_folder(spec.stage, spec.key), hashlib.sha256()
        for file in sorted(folder.glob("*.txt")):
            digest.update(file.read_bytes())
        return digest.hexdigest() == NAP.result_of(record).digest


def raise_on(work: Work, error: PrepareError | None) -> None:
    """Of work without which there is no going on."""
    if error is not None:
        raise error


def recipes(number: int) -> list[Nap]:
    """A run: weights made and checked, the baseline asked, then each variant, a verdict on it."""
    names = [f"recipe-{n}" for n in range(number)]
    made = [Nap(f"{n} quantize", SECONDS_TO_QUANTIZE, ON_A_GPU) for n in names]
    checked = [Nap(f"{n} check", SECONDS_TO_CHECK, LITTLE, (f"{n} quantize",)) for n in names]
    baseline = Nap("baseline asked", SECONDS_TO_ASK, ON_A_GPU)
    before = ("baseline asked",)
    asked = [Nap(f"{n} asked", SECONDS_TO_ASK, ON_A_GPU, (*before, f"{n} check")) for n in names]
    judged = [Nap(f"{n} judge", 0.0, LITTLE, (f"{n} asked",)) for n in names]
    return [baseline, *made, *checked, *asked, *judged]


def measure_efficiency(number: int, gpus: int) -> dict[str, Any]:
    """R recipes on G GPUs."""
    with a_node(gpus) as folder:
        naps = recipes(number)
        plan = Plan(folder, naps)
        pieces = [Piece(nap.name, nap.needs, nap.seconds, nap.after) for nap in naps]
        allowed = play(pieces, LocalExecutor().count_room, gpus).wall_seconds or 0.0
        started = time.perf_counter()
        plan.run()
        seconds = time.perf_counter() - started
        if plan.undone():
            raise SystemExit(f"not done: {plan.undone()}")
    return {
        "recipes": number,
        "gpus": gpus,
        "seconds": round(seconds, 3),
        "allowed_seconds": round(allowed, 3),
        "efficiency": round(allowed / seconds, 4),
    }


def measure_overhead(number: int) -> dict[str, Any]:
    """One stage after another, each from its submission until its record can be found."""
    with a_node(0) as folder:
        plan = Plan(folder, [Nap(str(n), 0.0, LITTLE) for n in range(number + 1)])
        executor, listener = LocalExecutor(), NotingProgress(Silent(), _NoLog())  # type: ignore[arg-type]
        visible, ended = [], []
        for number_of, spec in enumerate(plan.specs.values()):
            task = folder / f"{number_of}.json"
            task.write_text(spec.model_dump_json())
            started = time.perf_counter()
            place = executor.find_room(LITTLE)
            if place is None:
                raise SystemExit("there is no room on this node")
            job = place.submit(task, folder / "log")
            while plan.store.find(spec.stage, spec.key) is None:
                time.sleep(0.0005)
            visible.append(time.perf_counter() - started)
            job.wait(listener)
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


def tiny_plan(folder: Path, seed: int) -> Plan:
    """40 stages, each after up to two before it, of which one runs at a time."""
    drawn = random.Random(seed)
    naps: list[Nap] = []
    for number in range(STAGES_OF_A_PLAN):
        before = drawn.sample([nap.name for nap in naps], min(len(naps), drawn.randrange(3)))
        seconds = drawn.uniform(0, LONGEST_TINY_NAP)
        naps.append(Nap(f"{seed}-{number}", seconds, ALL_CORES, tuple(before)))
    return Plan(folder, naps)


def measure_kills(wanted: int, seed: int = 1) -> dict[str, Any]:
    """Plans, one after another, until so many kills have hit something."""
    drawn = random.Random(seed)
    total: Counter[str] = Counter()
    plans = repeats = done_again = faults = 0
    while total.total() < wanted:
        with a_node(0) as folder:
            plan, killed = tiny_plan(folder, plans), Counter[str]()
            while plan.undone():
                most = wanted - total.total() - killed.total()
                killed += one_command(folder, plans, drawn, is_to_be_killed=most > 0)
            events = plan.events()
            began = sum(n for (_, what), n in events.items() if what == "began")
            again = began - STAGES_OF_A_PLAN
            # One that is killed between its end and its record's rename did nothing that is kept.
            ended = sum(n for (_, what), n in events.items() if what == "ended")
            repeats += again
            done_again += max(0, ended - STAGES_OF_A_PLAN)
            faults += again > killed.total() or bool(left_of(folder))
            total += killed
            plans += 1
    return {
        "kills": total.total(),
        "of": dict(total),
        "plans_finished": plans,
        "stages": plans * STAGES_OF_A_PLAN,
        "begun_again": repeats,
        "ended_again": done_again,
        "plans_with_more_repeats_than_kills_or_leftovers": faults,
    }


def one_command(
    folder: Path, seed: int, drawn: random.Random, *, is_to_be_killed: bool
) -> Counter[str]:
    """Give the command, and kill one process that belongs to it at a random moment."""
    killed: Counter[str] = Counter()
    command = [sys.executable, __file__, "--plan", str(folder), str(seed)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as driver:
        if not is_to_be_killed:
            driver.wait()
            return killed
        kind = drawn.choice(KINDS)
        while driver.poll() is None and not any(True for _ in descendants(driver.pid)):
            time.sleep(0.01)  # it imports
        time.sleep(drawn.expovariate(1 / MEAN_SECONDS_TO_KILL))
        while driver.poll() is None:
            victims = [(driver.pid, "driver"), *descendants(driver.pid)]
            if found := [pid for pid, each in victims if each == kind]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(found), signal.SIGKILL)
                    killed[kind] += 1
                break
        driver.wait()
    return killed


def descendants(parent: int) -> Iterator[tuple[int, str]]:
    """Processes below that one, with what they are."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            kind = "guard" if "guard.py" in title else "stage" if "stage run" in title else "forks"
            children.setdefault(above, []).append((int(entry.name), kind))
    waiting = [parent]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child[0])
            yield child


def left_of(folder: Path, seconds: float = 15) -> list[str]:
    """Processes that still name the folder in their command line, after so long."""
    deadline = time.monotonic() + seconds
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@contextlib.contextmanager
def a_node(gpus: int) -> Iterator[Path]:
    """A folder, and a node of our own with so many GPUs."""
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
        os.environ["PYTHONPATH"] = str(NAPS)
        os.environ["PREPARE_NODE_LOCKS"] = str(folder / "locks")
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            yield folder
        finally:
            os.environ.clear()
            os.environ.update(before)


def main() -> int:
    """Measure, print, and say by the exit code whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--recipes", type=int, default=8)
    parser.add_argument("--stages", type=int, default=50, help="whose overhead is measured")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--store", help="URL in an object store, instead of a folder")
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plan:
        folder, seed = asked.plan
        try:
            tiny_plan(Path(folder), int(seed)).run()
        except PrepareError as error:
            print(error, file=sys.stderr)
            return int(error.exit_code)
        return 0
    if asked.store:
        os.environ[STORE_VARIABLE] = check_url(asked.store, "--store")
    found: dict[str, Any] = {"store": asked.store or "a folder", "efficiency": []}
    for gpus in asked.gpus:
        found["efficiency"].append(measure_efficiency(asked.recipes, gpus))
        print(found["efficiency"][-1], flush=True)
    met = [each["efficiency"] >= LEAST_EFFICIENCY for each in found["efficiency"]]
    if asked.stages:
        found["overhead"] = measure_overhead(asked.stages)
        print(found["overhead"], flush=True)
        if not asked.store:  # the target is of a folder
            met.append(found["overhead"]["median_seconds"] < MOST_OVERHEAD_SECONDS)
    if asked.kills:
        found["kills"] = measure_kills(asked.kills)
        print(found["kills"], flush=True)
        met.append(not found["kills"]["plans_with_more_repeats_than_kills_or_leftovers"])
    found["targets_met"] = all(met)
    print(json.dumps(found))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

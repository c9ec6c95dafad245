"""Kills at random moments of plans of tiny stages, and what they cost.

The command is given, processes that belong to it are ended by SIGKILL, one after another until it
has ended, and it is given again, until the plan is done. The driver, a stage and its supervisor are
killed; on a Ray cluster its workers and its raylets, too; the server of an object store is killed
and started again.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sleep_plan import ALL_CORES, ExecutionSite, SleepPlan, SleepStage, make_node

from pipeline.core.errors import PrepareError

STAGES_OF_A_PLAN = 40
MAX_TINY_SLEEP_S = 0.03
MEAN_SECONDS_TO_KILL = 0.7
COMMAND_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 40.0
MAX_KILLS_PER_PLAN = 40
MAX_COMMANDS = 500
EVERYWHERE = ("driver", "stage", "supervisor")


@dataclass(frozen=True)
class FaultTarget:
    """A kind of process that is killed, in addition to the command's processes.

    Attributes:
        find: its processes.
        mend: puts another in its place, once it is killed.
    """

    find: Callable[[], Sequence[int]]
    mend: Callable[[int], None]


@dataclass
class FaultInjectionResult:
    """What became of one plan."""

    seed: int
    killed: dict[str, int] = field(default_factory=dict)
    commands: int = 0
    begun_again: int = 0
    ended_again: int = 0
    lost: int = 0
    half_written: int = 0
    left: list[str] = field(default_factory=list)
    hung: int = 0
    unfinished: int = 0
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        """What must not be: 0 where all is well."""
        too_often = max(0, self.begun_again - sum(self.killed.values()))
        wrong = self.lost + self.half_written + self.hung + self.unfinished
        return too_often + wrong + len(self.left)


@dataclass(frozen=True)
class FaultInjector:
    """Plans with kills, and where they run.

    Attributes:
        victims: kinds of processes in addition to those of the command.
        roots: processes below which the command's own are found, in addition to the driver itself.
    """

    site: ExecutionSite
    victims: Mapping[str, FaultTarget]
    roots: Callable[[], Sequence[int]]

    def run(self, seed: int, most: int, kept: Path) -> FaultInjectionResult:
        """One plan to its end, with so many kills at most.

        Args:
            kept: where a plan's folder is copied to if something is wrong with it.
        """
        drawn, result, started = random.Random(seed), FaultInjectionResult(seed), time.monotonic()
        killed, done = Counter[str](), set[str]()
        with make_node(0) as folder:
            plan = tiny_plan(folder, seed, self.site)
            while len(done) < STAGES_OF_A_PLAN and result.commands < MAX_COMMANDS:
                result.commands += 1
                result.hung += self._one_command(folder, seed, drawn, most, killed)
                whole = plan.whole()
                result.lost += len(done - set(whole))
                result.half_written += sum(not each for each in whole.values())
                done = set(whole)
            result.unfinished = STAGES_OF_A_PLAN - len(done)
            if self.site.store:  # what a node finds that had no part in it
                whole = tiny_plan(folder, seed, self.site, cache="fresh").whole()
                result.lost += len(done - set(whole))
                result.half_written += sum(not each for each in whole.values())
            counted = Counter[str]()
            for (_, what), times in plan.events().items():
                counted[what] += times - 1
            result.begun_again, result.ended_again = counted["began"], counted["ended"]
            result.left = left_of(folder)
            result.killed = dict(killed)
            result.seconds = round(time.monotonic() - started, 1)
            if result.faults:
                shutil.copytree(folder, kept, dirs_exist_ok=True, symlinks=True)
        return result

    def _one_command(
        self, folder: Path, seed: int, drawn: random.Random, most: int, killed: Counter[str]
    ) -> bool:
        """Give the command, and kill until it has ended; whether it came to no end."""
        forked = multiprocessing.get_context("forkserver")
        arguments = (folder, seed, self.site, dict(os.environ))
        driver = forked.Process(target=drive, args=arguments)
        driver.start()
        assert driver.pid is not None
        try:
            while driver.is_alive() and killed.total() < most:
                if kind := self._kill(driver.pid, driver.is_alive, drawn):
                    killed[kind] += 1
                    driver.join(0.1)
            driver.join(COMMAND_TIMEOUT_S)
            return driver.is_alive()
        finally:
            driver.kill()
            driver.join()

    def _kill(self, driver: int, is_alive: Callable[[], bool], drawn: random.Random) -> str:
        """End one process at a random moment; its kind, or nothing where there was none to end."""
        kind = drawn.choice([*EVERYWHERE, *self.victims])
        while is_alive() and not any(True for _ in descendants([driver, *self.roots()])):
            time.sleep(0.01)
        time.sleep(drawn.expovariate(1 / MEAN_SECONDS_TO_KILL))
        while is_alive():
            if kind in self.victims:
                found = list(self.victims[kind].find())
            else:
                below = descendants([driver, *self.roots()])
                found = [pid for pid, each in [(driver, "driver"), *below] if each == kind]
            if found:
                victim = drawn.choice(found)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    if kind in self.victims:
                        self.victims[kind].mend(victim)
                    return kind
            time.sleep(0.003)
        return ""


def measure_kills(wanted: int, killing: FaultInjector, book: Path) -> dict[str, object]:
    """Plans, one after another, until so many kills have hit something.

    Args:
        book: to which each plan's line is appended; those that are there are counted.
    """
    while (had := sum(sum(each.killed.values()) for each in read(book))) < wanted:
        seed = len(read(book))
        most = min(wanted - had, MAX_KILLS_PER_PLAN)
        plan = killing.run(seed, most, book.with_name(f"{book.name}.{seed}"))
        with book.open("a") as lines:
            lines.write(json.dumps(asdict(plan)) + "\n")
        print(f"{had + sum(plan.killed.values())} kills: {plan}", file=sys.stderr, flush=True)
    plans, total = read(book), Counter[str]()
    for each in plans:
        total.update(each.killed)
    return {
        "kills": total.total(),
        "of": dict(total),
        "plans_finished": sum(not each.unfinished for each in plans),
        "stages": len(plans) * STAGES_OF_A_PLAN,
        "commands": sum(each.commands for each in plans),
        "begun_again": sum(each.begun_again for each in plans),
        "ended_again": sum(each.ended_again for each in plans),
        "lost": sum(each.lost for each in plans),
        "half_written": sum(each.half_written for each in plans),
        "plans_with_faults": sum(bool(each.faults) for each in plans),
    }


def read(book: Path) -> list[FaultInjectionResult]:
    """Return the plans of the log."""
    lines = book.read_text().splitlines() if book.exists() else []
    return [FaultInjectionResult(**json.loads(line)) for line in lines]


def tiny_plan(folder: Path, seed: int, site: ExecutionSite, *, cache: str = "node") -> SleepPlan:
    """40 stages, each after the one before it and up to two others."""
    drawn, sleeps = random.Random(seed), list[SleepStage]()
    for number in range(STAGES_OF_A_PLAN):
        before = {sleep.name for sleep in sleeps[-1:]}
        before |= set(
            drawn.sample([sleep.name for sleep in sleeps], min(len(sleeps), drawn.randrange(3)))
        )
        seconds = drawn.uniform(0, MAX_TINY_SLEEP_S)
        sleeps.append(SleepStage(f"{seed}-{number}", seconds, ALL_CORES, tuple(sorted(before))))
    return SleepPlan(folder, sleeps, site, cache=cache)


def drive(folder: Path, seed: int, site: ExecutionSite, variables: Mapping[str, str]) -> None:
    """Run the command, in a separate process."""
    os.environ.clear()
    os.environ.update(variables)
    with (folder / "drivers.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        tiny_plan(folder, seed, site).run(site.open())
    except PrepareError as error:
        print(f"{os.getpid()}: {error}", file=sys.stderr, flush=True)
        sys.exit(int(error.exit_code))


def descendants(roots: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Return the descendants of those processes, with their kinds."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            children.setdefault(above, []).append((int(entry.name), kind_of(title)))
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child[0])
            yield child


def kind_of(title: str) -> str:
    """Return the kind of a process with that command line."""
    marks = {
        "supervisor.py": "supervisor",
        "task run": "stage",
        "ray::": "worker",
    }
    return next((kind for mark, kind in marks.items() if mark in title), "")


def left_of(folder: Path) -> list[str]:
    """Command lines that still name the folder, after some time."""
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(folder) in (line := (entry / "cmdline").read_bytes()):
                    found.append(line.replace(b"\0", b" ").decode(errors="replace"))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)

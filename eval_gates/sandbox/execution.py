"""Runs model-written programs in a sandbox and says which of them pass their tests."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Literal, NamedTuple

from eval_gates.sandbox import cgroup
from eval_gates.sandbox.filesystem_view import PACKAGES_FOLDER, interpreter, packages, view
from eval_gates.sandbox.fork_server import ForkServer
from eval_gates.sandbox.framing import read_message, write_message
from eval_gates.sandbox.grader import OWN_MEMORY
from eval_gates.sandbox.grading import MOST_WAITING
from eval_gates.sandbox.isolation import Isolation, SandboxError
from pipeline.core.events import NullProgress, Progress

Outcome = Literal["passed", "failed", "timeout", "memory", "crashed"]

PROCESSES = 16  # keeper and its starters included
_DETAIL_CHARACTERS = 500
_GRACE_SECONDS = 15.0  # beyond its own limits, until a judge that hangs is killed
_LAUNCH_SECONDS = 30.0
_LOOK_SECONDS = 0.1


class Program(NamedTuple):
    """A solution and what proves or disproves it.

    Attributes:
        solution: the model's code, complete; it never sees the tests.
        entry_point: the function it has to define.
        test: code that calls the function by that name, and raises where it is wrong. It
            gets copies of plain values (see :mod:`.values`) and does not see what the function
            does to its arguments; names other than the function it has to define itself.
    """

    solution: str
    entry_point: str
    test: str


@dataclass(frozen=True)
class Execution:
    """How one program ended; `detail` is what it wrote to standard error and what went wrong."""

    passed: bool
    outcome: Outcome
    detail: str


def run_program(
    program: Program, *, seconds: float, memory_bytes: int, isolation: Isolation
) -> Execution:
    """Run a program; it passed only if its tests ran to their end, raising nothing.

    Args:
        program: the solution and its tests.
        seconds: limit of wall clock from when the sandbox stands, less what the program had to
            wait for a processor (up to :data:`.judge.MOST_WAITING` times the limit in all); also
            of each process's processor time, rounded up.
        memory_bytes: limit of each process's address space, and of what they hold together; the
            interpreter itself needs about 30 MB.
        isolation: from :func:`eval_gates.sandbox.isolation_probe.choose_isolation`.

    Raises:
        SandboxError: nothing is known of the program: the sandbox could not be made, or the tests
            themselves are broken.
    """
    with ForkServer(str(interpreter())) as server:
        return _Runner(server, seconds, memory_bytes, isolation).run(program)


def run_many(
    programs: Sequence[Program],
    *,
    seconds: float,
    memory_bytes: int,
    isolation: Isolation,
    workers: int | None = None,
    progress: Progress | None = None,
    task: str = "run programs",
) -> list[Execution]:
    """Run programs beside each other; the results are in the programs' order.

    An interrupt ends the programs that run at once.

    Args:
        seconds: as for :func:`run_program`, each.
        memory_bytes: as for :func:`run_program`, each.
        workers: how many run at once; as many as this process may use cores when absent.
        progress: receives how many are done.
        task: the name of the work in its progress.

    Raises:
        SandboxError: as for :func:`run_program`; the rest is not run.
    """
    progress = progress or NullProgress()
    with (
        ForkServer(str(interpreter())) as server,
        ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool,
    ):
        runner = _Runner(server, seconds, memory_bytes, isolation)
        runs = [pool.submit(runner.run, program) for program in programs]
        try:
            for done, run in enumerate(as_completed(runs), start=1):
                run.result()
                progress.advance(task, done, len(runs), "programs")
        except BaseException:
            runner.stop()
            pool.shutdown(cancel_futures=True)
            raise
        return [run.result() for run in runs]


class _StoppedError(Exception):
    """Another program's failure, or the user, ended this one."""


class _Runner:
    """Runs programs with the same limits; safe from several threads."""

    def __init__(
        self, server: ForkServer, seconds: float, memory_bytes: int, isolation: Isolation
    ) -> None:
        self._server = server
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._isolation = isolation
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up on whatever runs."""
        self._stopped.set()

    def run(self, program: Program) -> Execution:
        """Run one program."""
        started = time.monotonic()
        with (
            self._groups() as groups,
            _folders(self._isolation) as (work, packages_folder),
            TemporaryFile() as task,
            _open_twice() as (errors, said_errors),
        ):
            write_message(task.fileno(), self._settings(groups, work, packages_folder))
            write_message(task.fileno(), program._asdict())
            task.seek(0)
            report = self._judge(task, errors)
            said = _tail(said_errors)
        if "broken" in report:
            raise _sandbox_error(_join(said, _text(report["broken"])), self._isolation)
        if "outcome" not in report:  # begun, and ended without a word
            outcome = "timeout" if time.monotonic() - started > self._seconds else "crashed"
            report = {"outcome": outcome, "detail": "its answers took too much to be judged"}
        detail = _join(said, _text(report["detail"]))[-_DETAIL_CHARACTERS:]
        return Execution(report["outcome"] == "passed", report["outcome"], detail)

    @contextmanager
    def _groups(self) -> Iterator[tuple[str, str]]:
        """The cgroups of solution and tests, where they get any."""
        if not self._isolation.cgroup:
            yield "", ""
            return
        parent = Path(self._isolation.cgroup)
        with ExitStack() as stack:
            try:
                solution, tests = (
                    stack.enter_context(cgroup.make(parent, memory, PROCESSES))
                    for memory in (self._memory_bytes, max(self._memory_bytes, OWN_MEMORY))
                )
            except OSError as error:
                raise _sandbox_error(
                    f"no cgroup could be made: {error}", self._isolation
                ) from error
            yield str(solution), str(tests)

    def _settings(self, groups: tuple[str, str], work: str, packages_folder: str) -> dict[str, Any]:
        orders = {
            "seconds": ceil(self._seconds),
            "memory_bytes": self._memory_bytes,
            "processes": 0 if self._isolation.kind == "none" else PROCESSES,
            "packages": packages_folder,
            "folder": work,
        }
        shown = view(self._isolation.hidden).as_dict()
        kinds = (self._isolation, self._isolation.for_tests or self._isolation)
        solution, tests = (
            {**asdict(kind), "cgroup": group, "view": shown}
            for kind, group in zip(kinds, groups, strict=True)
        )
        return {
            "solver": solution,
            "grader": tests,
            "wall_seconds": self._seconds,
            "orders": orders,
        }

    def _judge(self, task: IO[bytes], errors: IO[bytes]) -> dict[str, Any]:
        """The judge's last message."""
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0):
            try:
                self._server.start(task, errors, writer)
            except OSError as error:
                return {"broken": f"no judge could be started: {error}"}
            finally:
                os.close(writer)
            report: dict[str, Any] = {"broken": "the judge ended without a result"}
            most = _LAUNCH_SECONDS + MOST_WAITING * self._seconds + _GRACE_SECONDS
            deadline = time.monotonic() + most
            while "outcome" not in report:
                if not self._hear(reader, deadline):
                    if "begun" in report:  # its own limits will end it
                        return report
                    raise _sandbox_error("the judge does not answer", self._isolation)
                try:
                    report = read_message(reader)
                except EOFError:
                    break
        return report

    def _hear(self, reader: int, deadline: float) -> bool:
        """Wait until there is something to read, or for too long."""
        end = select.poll()
        end.register(reader, select.POLLIN)
        while not end.poll(_LOOK_SECONDS * 1000):
            if self._stopped.is_set():
                raise _StoppedError
            if time.monotonic() > deadline:
                return False
        return True


@contextmanager
def _folders(isolation: Isolation) -> Iterator[tuple[str, str]]:
    """Where the program works and where its packages are; a sandbox has both inside."""
    if isolation.kind != "none":
        yield "/tmp", PACKAGES_FOLDER  # noqa: S108
        return
    with TemporaryDirectory(prefix="prepare-program-", ignore_cleanup_errors=True) as folder:
        work, shown = Path(folder, "work"), Path(folder, "packages")
        work.mkdir()
        shown.mkdir()
        for package in packages():
            (shown / package.name).symlink_to(package)
        yield str(work), str(shown)


@contextmanager
def _open_twice() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file to hand on for writing, and for us to read: flags that are set on one hold for it."""
    with TemporaryFile() as ours, Path(f"/proc/self/fd/{ours.fileno()}").open("ab") as theirs:
        yield theirs, ours


def _sandbox_error(why: str, isolation: Isolation) -> SandboxError:
    return SandboxError(
        f"model-written code could not be run: {why or 'no reason given'}",
        where=f"isolation {isolation.kind}, {interpreter()}",
        hint="raise the suite's seconds or memory per problem if they are low, free memory on this "
        "machine, or see which isolation works here: prepare env doctor",
    )


def _join(said: str, what: str) -> str:
    return "\n".join(part for part in (said, what.strip()) if part)


def _text(said: str) -> str:
    """What the program said, without the halves of characters that no file takes."""
    return said.encode(errors="replace").decode()


def _tail(errors: IO[bytes]) -> str:
    """The last characters written to standard error."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4 * _DETAIL_CHARACTERS))
    return errors.read().decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]

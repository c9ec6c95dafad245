"""Runs model-written programs in a sandbox and reports which pass their tests."""

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
from eval_gates.sandbox.grader import MIN_GRADER_BYTES
from eval_gates.sandbox.grading import MAX_WAIT_FACTOR
from eval_gates.sandbox.isolation import Isolation, SandboxError
from pipeline.core.events import NullProgress, Progress

Outcome = Literal["passed", "failed", "timeout", "memory", "crashed"]

PROCESSES = 16  # including the init and its starters
_DETAIL_CHARACTERS = 500
_GRACE_S = 15.0  # beyond its own limits, until a hanging grading process is killed
_LAUNCH_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.1


class Program(NamedTuple):
    """Solution and its tests.

    Attributes:
        solution: the model's complete code.
        test: code that calls the function by name and raises if a result is wrong. It gets
            copies of plain values, and does not see changed arguments.
    """

    solution: str
    entry_point: str
    test: str


@dataclass(frozen=True)
class Execution:
    """Result of a program; `detail` has its standard error and the cause."""

    passed: bool
    outcome: Outcome
    detail: str


def run_program(
    program: Program, *, seconds: float, memory_bytes: int, isolation: Isolation
) -> Execution:
    """Run a program; it passes only if its tests run to their end without an exception.

    Args:
        seconds: limit of each process's CPU time, and of wall-clock time without waits for a CPU.
            With waits the limit is :data:`.grading.MAX_WAIT_FACTOR` times as long.
        memory_bytes: limit of each process's address space, and of their memory together.

    Raises:
        SandboxError: there is no result: the sandbox failed, or the tests are broken.
    """
    with ForkServer(str(interpreter())) as server:
        return _ProgramRunner(server, seconds, memory_bytes, isolation).run(program)


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
    """Run programs concurrently as :func:`run_program`; results in the programs' order."""
    progress = progress or NullProgress()
    with (
        ForkServer(str(interpreter())) as server,
        ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool,
    ):
        runner = _ProgramRunner(server, seconds, memory_bytes, isolation)
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
    pass


class _ProgramRunner:
    def __init__(
        self, server: ForkServer, seconds: float, memory_bytes: int, isolation: Isolation
    ) -> None:
        self._server = server
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._isolation = isolation
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self, program: Program) -> Execution:
        started = time.monotonic()
        with (
            self._make_cgroups() as groups,
            _work_folders(self._isolation) as (work, packages_folder),
            TemporaryFile() as task,
            _open_twice() as (errors, errors_reader),
        ):
            write_message(task.fileno(), self._settings(groups, work, packages_folder))
            write_message(task.fileno(), program._asdict())
            task.seek(0)
            report = self._grade(task, errors)
            output = _tail(errors_reader)
        if "broken" in report:
            raise _sandbox_error(
                _join(output, _replace_surrogates(report["broken"])), self._isolation
            )
        if "outcome" not in report:  # it started, and ended without a result
            outcome = "timeout" if time.monotonic() - started > self._seconds else "crashed"
            report = {"outcome": outcome, "detail": "grading its answers exceeded the limits"}
        detail = _join(output, _replace_surrogates(report["detail"]))[-_DETAIL_CHARACTERS:]
        return Execution(report["outcome"] == "passed", report["outcome"], detail)

    @contextmanager
    def _make_cgroups(self) -> Iterator[tuple[str, str]]:
        if not self._isolation.cgroup:
            yield "", ""
            return
        parent = Path(self._isolation.cgroup)
        with ExitStack() as stack:
            try:
                solution, tests = (
                    stack.enter_context(cgroup.make(parent, memory, PROCESSES))
                    for memory in (self._memory_bytes, max(self._memory_bytes, MIN_GRADER_BYTES))
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

    def _grade(self, task: IO[bytes], errors: IO[bytes]) -> dict[str, Any]:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0):
            try:
                self._server.start(task, errors, writer)
            except OSError as error:
                return {"broken": f"the grading process could not be started: {error}"}
            finally:
                os.close(writer)
            report: dict[str, Any] = {"broken": "the grading process ended without a result"}
            most = _LAUNCH_TIMEOUT_S + MAX_WAIT_FACTOR * self._seconds + _GRACE_S
            deadline = time.monotonic() + most
            while "outcome" not in report:
                if not self._wait_readable(reader, deadline):
                    if "begun" in report:  # the program's own limits end it
                        return report
                    raise _sandbox_error("the grading process does not answer", self._isolation)
                try:
                    report = read_message(reader)
                except EOFError:
                    break
        return report

    def _wait_readable(self, reader: int, deadline: float) -> bool:
        end = select.poll()
        end.register(reader, select.POLLIN)
        while not end.poll(_POLL_INTERVAL_S * 1000):
            if self._stopped.is_set():
                raise _StoppedError
            if time.monotonic() > deadline:
                return False
        return True


@contextmanager
def _work_folders(isolation: Isolation) -> Iterator[tuple[str, str]]:
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
    with TemporaryFile() as reader, Path(f"/proc/self/fd/{reader.fileno()}").open("ab") as writer:
        yield writer, reader


def _sandbox_error(why: str, isolation: Isolation) -> SandboxError:
    return SandboxError(
        f"model-written code could not be run: {why or 'no reason given'}",
        where=f"isolation {isolation.kind}, {interpreter()}",
        hint="raise the suite's seconds or memory per problem if they are low, free memory on this "
        "machine, or see which isolation works here: prepare env doctor",
    )


def _join(output: str, what: str) -> str:
    return "\n".join(part for part in (output, what.strip()) if part)


def _replace_surrogates(output: str) -> str:
    return output.encode(errors="replace").decode()


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4 * _DETAIL_CHARACTERS))
    return errors.read().decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]

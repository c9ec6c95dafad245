"""Runs a model-written program in a process of its own, with limits, and says whether it passed.

This is not a sandbox. A program here may still read the user's files, write where the user may
write, and use the network; and one that starts its own session (`setsid`) can outlive its run. It
is kept from hanging, from filling memory or disk by accident, from reading the environment, and
from passing without having run to its end. A program that inspects the interpreter's frames to
forge its report is not stopped. Run it where that is acceptable, as in a container.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import ceil
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Literal

from pipeline.errors import StageError
from pipeline.events import Progress, Silent

Outcome = Literal["passed", "failed", "timeout", "memory", "crashed"]

_DETAIL_CHARACTERS = 500
_LARGEST_FILE_BYTES = 4 * 2**20  # also bounds what is kept of standard error
_REPORT_BYTES = 65_536  # a pipe's capacity

# The program's whole environment. Strings hash alike in every run, or a solution that depends on
# a set's order would pass for one model and fail for the next; numpy's BLAS would claim a buffer
# for each of many cores out of the memory limit.
_ENVIRONMENT = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}

# Reads its orders from standard input, then closes it, so that neither they nor the nonce are in
# an argument, a file or a variable the program would come across. What it needs after the program
# is bound beforehand, since a program may replace a module's functions.
_LAUNCHER = """
import json, os, resource, signal, sys, traceback

def limit(kind, soft, hard):
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))

def main():
    orders = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    report, nonce, seconds = orders["report"], orders["nonce"], orders["seconds"]
    program, write, leave = orders["program"], os.write, os._exit
    whoami, me = os.getpid, os.getpid()
    words = ("started", "passed", "failed", "memory")
    answers = {word: f"{nonce} {word}\\n".encode() for word in words}
    signal.alarm(seconds + 1)  # the parent kills earlier, unless it was killed itself
    limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    limit(resource.RLIMIT_FSIZE, orders["file_bytes"], orders["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64, 64)
    limit(resource.RLIMIT_CORE, 0, 0)
    limit(resource.RLIMIT_NPROC, 0, 0)  # no more processes or threads; root is exempt
    limit(resource.RLIMIT_AS, orders["memory_bytes"], orders["memory_bytes"])
    write(report, answers["started"])
    namespace = {"__name__": "program"}
    try:
        exec(compile(program, "<program>", "exec"), namespace)
    except MemoryError:
        namespace.clear()
        write(report, answers["memory"])
    except BaseException:
        write(report, answers["failed"])
        traceback.print_exc()
        sys.stderr.flush()
    else:
        if whoami() == me:  # not a fork of the program
            write(report, answers["passed"])
    leave(0)

main()
"""


@dataclass(frozen=True)
class Execution:
    """How one program ended; `detail` is the end of its standard error, or what killed it."""

    passed: bool
    outcome: Outcome
    detail: str


def run_program(program: str, *, seconds: float, memory_bytes: int) -> Execution:
    """Run a program; it passed only if its last statement was reached and raised nothing.

    The process has its own session, working directory (removed afterwards), an empty environment,
    no input, no output, and limits on processor time, memory, file size, open files and (but for
    root) child processes. Its process group is killed whole, in any case. See the module's
    docstring for what this does not prevent.

    Args:
        program: Python source.
        seconds: wall-clock limit, the interpreter's start included.
        memory_bytes: limit of the address space; the interpreter itself needs about 30 MB.

    Raises:
        StageError: the runner could not even start, so nothing is known of the program.
    """
    nonce = secrets.token_hex(16)
    with (
        TemporaryDirectory(prefix="prepare-program-", ignore_cleanup_errors=True) as folder,
        TemporaryFile() as orders,
        TemporaryFile() as errors,
    ):
        reader, writer = os.pipe()
        try:
            _write_orders(orders, program, nonce, writer, seconds, memory_bytes)
            with subprocess.Popen(
                [sys.executable, "-sP", "-c", _LAUNCHER],
                cwd=folder,
                env=_ENVIRONMENT,
                stdin=orders,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(writer,),
                start_new_session=True,
            ) as process:
                in_time = _end(process, time.monotonic() + seconds)
            report = _read_report(reader)
        finally:
            os.close(reader)
            os.close(writer)
        detail = _tail(errors)
    words = _words(report, nonce)
    if "started" not in words:
        raise StageError(
            f"the runner of model-written code did not start: {detail or 'no reason given'}",
            where=f"{sys.executable}, limits of {seconds} s and {memory_bytes} bytes",
            cure="raise the suite's seconds or memory per problem, or free memory on this machine",
        )
    return _judge(words, in_time, process.returncode, detail, seconds)


def run_many(
    programs: Sequence[str],
    *,
    seconds: float,
    memory_bytes: int,
    workers: int | None = None,
    progress: Progress | None = None,
    task: str = "run programs",
) -> list[Execution]:
    """Run programs beside each other; the results are in the programs' order.

    Args:
        programs: Python sources.
        seconds: wall-clock limit of each.
        memory_bytes: limit of each one's address space.
        workers: how many run at once; as many as this process may use cores when absent.
        progress: hears how many are done.
        task: the name of the work in its progress.
    """
    progress = progress or Silent()
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        runs = [
            pool.submit(run_program, program, seconds=seconds, memory_bytes=memory_bytes)
            for program in programs
        ]
        try:
            for done, run in enumerate(as_completed(runs), start=1):
                run.result()
                progress.advance(task, done, len(runs), "programs")
        except BaseException:  # an interrupt too: do not go on to start what is still waiting
            pool.shutdown(cancel_futures=True)
            raise
        return [run.result() for run in runs]


def _write_orders(
    orders: IO[bytes], program: str, nonce: str, writer: int, seconds: float, memory_bytes: int
) -> None:
    content = {
        "program": program,
        "nonce": nonce,
        "report": writer,
        "seconds": ceil(seconds),
        "memory_bytes": memory_bytes,
        "file_bytes": _LARGEST_FILE_BYTES,
    }
    orders.write(json.dumps(content).encode())
    orders.seek(0)


def _end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until the process ends or the deadline, then kill its group; whether it was in time.

    The leader is not reaped before the group is killed: until then its number cannot belong to
    another process.
    """
    pause = 0.001
    try:
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return True
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return False
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def _read_report(reader: int) -> bytes:
    """What is in the pipe now; a surviving child may hold its other end open for ever."""
    os.set_blocking(reader, False)
    try:
        return os.read(reader, _REPORT_BYTES)
    except BlockingIOError:  # nothing was written
        return b""


def _words(report: bytes, nonce: str) -> set[str]:
    """What the launcher said; lines without the nonce are the program's own."""
    lines = report.decode("ascii", errors="replace").splitlines()
    return {line.removeprefix(f"{nonce} ") for line in lines if line.startswith(f"{nonce} ")}


def _judge(
    words: set[str], in_time: bool, returncode: int, detail: str, seconds: float
) -> Execution:
    if "passed" in words and in_time and returncode == 0:
        return Execution(True, "passed", detail)
    if "memory" in words:
        return Execution(False, "memory", detail or "the memory limit was reached")
    if "failed" in words:
        return Execution(False, "failed", detail)
    if not in_time or returncode in (-signal.SIGXCPU, -signal.SIGALRM):
        return Execution(False, "timeout", detail or f"still running after {seconds:g} s")
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return Execution(False, "crashed", _with(f"ended by {name}", detail))
    ending = f"left with status {returncode} before its checks had run to their end"
    return Execution(False, "failed", _with(ending, detail))


def _with(what: str, detail: str) -> str:
    return f"{detail}\n{what}" if detail else what


def _tail(errors: IO[bytes]) -> str:
    """The last characters written to standard error."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4 * _DETAIL_CHARACTERS))
    return errors.read().decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]

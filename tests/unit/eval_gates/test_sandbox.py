"""Hostile programs in the sandbox: none reaches anything outside, none is left.

A new way out goes into `REACHES_OUT` first. Each such program passes where its attempt succeeds.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eval_gates.sandbox import (
    CURE,
    FILE_BYTES,
    Execution,
    Program,
    SandboxError,
    bubblewraps,
    check_sandbox,
    run_many,
)
from eval_gates.suites.suite_kind import kind_of, without_uncontained
from recipes.policy import Policy

MEMORY = 2**28 + os.getpid()  # tells this process's programs from those of other runs
ROOT = Path(__file__).parents[3]
TEST = "assert f(1) == 2\nassert f(41) == 42\n"
WRONG = "def f(x): return 0\n"
RIGHT = "def f(x): return x + 1\n"


def tries(attempt: str) -> str:
    """A program that passes if the attempt, which sets `done`, succeeds."""
    body = "".join(f"    {line}\n" for line in attempt.splitlines())
    return (
        f"done = False\ntry:\n{body}except OSError: pass\ndef f(x): return x + 1 if done else 0\n"
    )


def opens(*paths: str, mode: str = "r") -> str:
    return tries(
        f"for path in {paths!r}:\n  try:\n    open(path, {mode!r}).close()\n    done = True\n"
        "  except OSError: pass"
    )


REACHES_OUT = {
    "users": opens("/etc/passwd", "/etc/hostname", "/etc/shadow", "/proc/1/root/etc/passwd"),
    "homes": tries("import os\ndone = any(map(os.listdir, ('/home',)))"),
    "root's home": tries(
        "import os\ndone = bool(set(os.listdir('/root')) - {*os.__file__.split('/')})"
    ),
    "this test": opens(__file__, f"/proc/1/root{__file__}"),
    "writing": opens(
        *(
            f"{place}/prepare-hostile"
            for place in (
                *("", "/usr", "/usr/lib", "/etc", "/dev", "/dev/shm", "/packages", "/home"),
                *("/var/tmp", "/proc", "/proc/sys/kernel", "/proc/self", "/root", "/lib"),
            )
        ),
        mode="w",
    ),
    "writing among the libraries": tries(
        "import os\nos.mkdir(os.path.dirname(os.__file__) + '/d')\ndone = True"
    ),
    "remounting": tries(
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "done = libc.mount(None, b'/', None, 32 | 4096, None) == 0\n"
        "done = done or libc.umount2(b'/usr/lib', 2) == 0"
    ),
    "becoming root": tries(
        "import os\nfor call in (os.setuid, os.setgid, os.seteuid, os.setegid):\n"
        "  try:\n    call(0)\n    done = True\n  except OSError: pass"
    ),
    "being root": tries("import os\ndone = 0 in (os.getuid(), os.geteuid(), os.getgid())"),
    "capabilities": tries(
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "done = libc.sethostname(b'x', 1) == 0 or libc.chroot(b'/tmp') == 0"
    ),
    "other processes": tries(
        "import os\ndone = sum(name.isdigit() for name in os.listdir('/proc')) > 3"
    ),
    "its parent's memory": tries(
        "import os\nfor pid in {1, os.getppid()} - {0, os.getpid()}:\n"
        "  open(f'/proc/{pid}/mem', 'rb').close()\n  done = True"
    ),
    "tracing its parent": tries(
        "import ctypes, os\nparent = os.getppid()\n"
        "done = parent > 0 and ctypes.CDLL(None).ptrace(16, parent, 0, 0) == 0"
    ),
    "killing all": "import os, signal\nos.kill(-1, signal.SIGKILL)\n" + WRONG,
    "killing its parent": (
        "import os, signal\nif os.getppid(): os.kill(os.getppid(), signal.SIGKILL)\n" + WRONG
    ),
    "environments": tries(
        "import glob, os\nfor path in glob.glob('/proc/[0-9]*/environ'):\n"
        "  try: done = done or 'SOMEBODYS_TOKEN' in open(path).read()\n  except OSError: pass\n"
        "done = done or 'SOMEBODYS_TOKEN' in str(os.environ)"
    ),
    "open descriptors": tries(
        "import os\nfor fd in range(64):\n"
        "  try: found = os.fstat(fd)\n  except OSError: continue\n"
        "  done = done or found.st_mode >> 12 != 2 and found.st_nlink > 0"
    ),
    "the network": tries(
        "import socket\nfor kind, to in ((2, '192.0.2.1'), (10, '2001:db8::1')):\n"
        "  try:\n    socket.socket(kind, socket.SOCK_DGRAM).connect((to, 9))\n    done = True\n"
        "  except OSError: pass"
    ),
    "packages": tries(
        "import glob, importlib.util, os, sys\n"
        "shown = set(os.listdir('/packages')) if os.path.exists('/packages') else set()\n"
        "done = bool(importlib.util.find_spec('pytest') or shown - {'numpy', 'numpy.libs'})\n"
        "for prefix in (sys.prefix, '/usr', '/usr/local'):\n"
        "  done = done or bool(glob.glob(f'{prefix}/lib/python3*/*-packages/*'))"
    ),
    "memory outside processes": tries(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "done = libc.shmget(0, 4096, 0o1600) >= 0 or libc.msgget(0, 0o1600) >= 0\n"
        "done = done or hasattr(os, 'memfd_create') and libc.memfd_create(b'x', 0) >= 0"
    ),
    "devices": opens("/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/sda", "/dev/tty", "/dev/ptmx"),
    "a terminal": tries("import fcntl\nfcntl.ioctl(0, 0x5412, b'x')\ndone = True"),
}

# Programs that do not come to their end, with the outcomes that are right.
ENDS = {
    "sleeps": ("import time\ntime.sleep(600)", "timeout"),
    "sleeps in the call": ("def f(x):\n  import time\n  time.sleep(600)", "timeout"),
    "spins": ("while True: pass", "timeout"),
    "prints without an end": ("while True: print('x' * 10_000)", "timeout"),
    "complains without an end": (
        "import sys\nwhile True: sys.stderr.write('é' * 10_000)", "failed timeout"
    ),
    "floods every descriptor": (
        "import os\nwhile True:\n  for fd in range(64):\n    try: os.write(fd, b'x' * 10**6)\n"
        "    except OSError: pass",
        "timeout",
    ),
    "memory in one step": ("x = bytearray(2**40)", "memory"),
    "memory by and by": ("x = []\nwhile True: x.append(bytearray(2**20))", "memory"),
    "memory in the call": ("def f(x): return [0] * 2**40", "memory"),
    "fork bomb": (
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", "timeout memory"
    ),
    "many children": (
        "import os, time\nfor _ in range(40):\n  if os.fork() == 0: time.sleep(600)\n", "failed"
    ),
    "threads": (
        "import threading, time\nwhile True:\n"
        "  threading.Thread(target=time.sleep, args=(600,)).start()\n",
        "failed timeout memory",
    ),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n"
        "  os._exit(0)\nos._exit(0)",
        "failed",
    ),
    "huge file": ("open('big', 'wb').write(bytes(2**26))\n", "failed"),
    "many files": ("for n in range(40): open(f'/tmp/{n}', 'wb').write(bytes(2**20))", "failed"),
    "open files": ("x = [open('/dev/null') for _ in range(100)]", "failed"),
    "wrong": (WRONG, "failed"),
    "no function": ("x = 1", "failed"),
    "no Python": ("def f(x: return", "failed"),
    "null bytes": ("\0", "failed"),
    "half a pair": ("x = '\udc80'", "failed"),
    "leaves before the tests": ("import os\nos._exit(0)", "failed"),
    "leaves in the call": ("def f(x):\n  import os\n  os._exit(0)", "failed"),
    "exits": ("import sys\nsys.exit(0)", "failed"),
    "exits in the call": ("def f(x): raise SystemExit(0)", "failed"),
    "interrupts itself": ("def f(x): raise KeyboardInterrupt", "failed"),
    "prints what is expected": ("print('passed')\n" + WRONG, "failed"),
    "closes every descriptor": ("import os\nos.closerange(0, 64)\n" + RIGHT, "failed"),
    "a hook for exceptions": ("import sys\nsys.excepthook = lambda *a: None\nassert 0", "failed"),
    "at exit": ("import atexit, os\natexit.register(lambda: os._exit(0))\n" + WRONG, "failed"),
    "speaks as bubblewrap": ("import sys\nsys.stderr.write('bwrap: no')\nassert 0", "failed"),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)\n" + WRONG, "failed memory"),
    "kills its group": ("import os\nos.killpg(0, 9)\n" + WRONG, "failed memory"),
    "lives on without its parent": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.prctl(1, 0)\n"
        "while True:\n"
        "  if not os.fork():\n"
        "    libc.prctl(1, 0)\n    for _ in range(10 ** 7): pass\n    os._exit(0)\n"
        "  os.wait()",
        "timeout",
    ),
    "stops itself": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n" + WRONG, "failed timeout"
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Path]:
    """A folder below /tmp that every user may read, with an interpreter and the sandbox's code."""
    with tempfile.TemporaryDirectory(prefix="prepare-test-", dir="/tmp") as folder:
        copy_to(Path(folder))
        yield Path(folder)


def copy_to(folder: Path) -> None:
    python = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    without = shutil.ignore_patterns("site-packages", "test", "__pycache__", "config-*", "*.a")
    shutil.copytree(python.parents[1] / "lib", folder / "py" / "lib", ignore=without, symlinks=True)
    (folder / "py" / "bin").mkdir()
    shutil.copy2(python, folder / "py" / "bin" / python.name)
    for package in ("prepare", "eval_gates"):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").touch()
    shutil.copytree(ROOT / "prepare", folder / "prepare", dirs_exist_ok=True)
    shutil.copy2(ROOT / "eval_gates" / "sandbox.py", folder / "eval_gates" / "sandbox.py")
    package = Path(list(bubblewraps())[-1]).parents[1]
    for part in (package, package.with_suffix(".libs")):  # the program and its shared libraries
        shutil.copytree(part, folder / part.name)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    folder.chmod(0o755)


# Runs programs as an ordinary user: argv is how this machine is to be; programs are on stdin.
DRIVER = """
import ctypes, json, os, sys
how, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
if "masked" in how:
    assert libc.unshare(0x20000) == 0, ctypes.get_errno()
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
    assert libc.mount(b"none", b"/proc/bus", b"tmpfs", 0, None) == 0, ctypes.get_errno()
if "user" in how:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
if "forbidden" in how:
    assert libc.unshare(0x10000000) == 0, ctypes.get_errno()
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
from eval_gates.sandbox import Program, SandboxError, check_sandbox, run_many
try:
    sandbox = check_sandbox()
except SandboxError as error:
    print(json.dumps([error.message, error.hint]))
    sys.exit()
programs = [Program(*each) for each in json.load(sys.stdin)]
found = run_many(programs, seconds=2, memory_bytes=int(sys.argv[2]))
print(json.dumps([sandbox._asdict(), [[each.outcome, each.detail] for each in found]]))
"""
HOW = ["user", "masked user", "masked"]


def run_as(how: str, elsewhere: Path, programs: list[Program]) -> Any:
    if os.geteuid():
        pytest.skip("only root becomes another user")
    (python,) = (elsewhere / "py" / "bin").iterdir()
    done = subprocess.run(
        [python, "-c", DRIVER, how, str(MEMORY)],
        input=json.dumps(programs),
        env={"PYTHONPATH": str(elsewhere), "PATH": os.environ["PATH"], "SOMEBODYS_TOKEN": "x"},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(programs: list[Program], seconds: float = 2) -> list[Execution]:
    return run_many(programs, seconds=seconds, memory_bytes=MEMORY)


def test_programs_that_reach_out_are_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_TOKEN", "x")
    ran = run([Program(each, TEST) for each in REACHES_OUT.values()])
    assert {n: r for n, r in zip(REACHES_OUT, ran, strict=True) if r.passed} == {}


@pytest.mark.parametrize("how", HOW)
def test_programs_are_contained_for_other_users_and_views(how: str, elsewhere: Path) -> None:
    found = run_as(how, elsewhere, [Program(RIGHT, TEST), *(
        Program(each, TEST) for each in REACHES_OUT.values()
    )])  # fmt: skip
    sandbox, ((outcome, detail), *others) = found
    assert sandbox["has_proc"] is ("masked user" not in how)
    assert outcome == "passed", detail
    escaped = {
        name: each for name, each in zip(REACHES_OUT, others, strict=True) if each[0] == "passed"
    }
    assert escaped == {}


@pytest.mark.parametrize("how", [None, pytest.param("user", marks=pytest.mark.of_everything)])
def test_programs_end_within_their_limits(how: str | None, elsewhere: Path) -> None:
    programs = [Program(solution, TEST) for solution, _ in ENDS.values()]
    before = running()
    if how is None:
        ran = [each.outcome for each in run(programs, seconds=1)]
    else:
        ran = [outcome for outcome, _ in run_as(how, elsewhere, programs)[1]]
    told = {
        name: outcome
        for (name, (_, right)), outcome in zip(ENDS.items(), ran, strict=True)
        if outcome not in right.split()
    }
    assert told == {}
    assert ends(before)


def running() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"\0{MEMORY}\0".encode() in path.read_bytes():
                found.add(path.parent.name)
    return found


def ends(before: set[str]) -> bool:
    deadline = time.monotonic() + 10
    while running() - before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_no_program_is_left_when_its_parent_is_killed() -> None:
    code = (
        "from eval_gates.sandbox import Program, run_many\n"
        "run_many([Program('import time; time.sleep(600)', '')] * 2, seconds=60,"
        f" memory_bytes={MEMORY})"
    )
    before, per_program = running(), 2 if os.geteuid() else 3
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        deadline = time.monotonic() + 30
        while len(running() - before) < per_program * 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.3)
        parent.kill()
    assert ends(before)


def test_what_a_program_may_use() -> None:
    solution = (
        "import collections, decimal, itertools, json, math, numpy, random, re, sys, tempfile\n"
        "import zoneinfo; zoneinfo.ZoneInfo('Europe/Vienna')\n"
        "with tempfile.NamedTemporaryFile() as file: file.write(b'x')\n"
        "open('/tmp/own', 'w').write('x')\nassert str({'a', 'b'}) == str({'a', 'b'})\n"
        "assert __name__ != '__main__'\nprint('noise', file=sys.stderr)\n"
        "def f(x): return int(numpy.array([x]).sum()) + 1\n"
    )
    (ran,) = run([Program(solution, TEST)], seconds=20)
    assert ran.passed, ran.detail
    assert ran.detail == "noise"


def test_programs_do_not_meet_each_other() -> None:
    leave = "open('/tmp/left', 'w').close()\nimport os, time\nif os.fork() == 0: time.sleep(5)\n"
    find = tries("import os\ndone = os.listdir('/tmp') != []")
    ran = run([Program(leave + RIGHT, TEST)] + [Program(find, TEST)] * 3)
    assert [each.passed for each in ran] == [True, False, False, False]


def test_servers_of_this_machine_are_out_of_reach() -> None:
    name = f"\0prepare-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        attempts = [
            f"import socket\nsocket.socket({family}).connect({address!r})\ndone = True"
            for family, address in ((2, tcp.getsockname()), (1, name))
        ]
        ran = run([Program(tries(each), TEST) for each in attempts])
    assert [each.outcome for each in ran] == ["failed", "failed"]


def test_output_is_limited() -> None:
    (ran,) = run([Program("import sys\nsys.stderr.write('x' * 10**9)", "")], seconds=5)
    assert len(ran.detail) <= 500 < FILE_BYTES


def test_without_user_namespaces_it_is_refused_by_name_with_cures(elsewhere: Path) -> None:
    message, hint = run_as("user forbidden", elsewhere, [])
    assert "namespace" in message
    assert hint == CURE
    for cure in ("seccomp", "hostUsers", "AppArmor", "if_no_sandbox"):
        assert cure in hint


def test_without_bubblewrap_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sandbox.cache_clear()
    monkeypatch.setattr("eval_gates.sandbox.bubblewraps", lambda: iter(()))
    try:
        with pytest.raises(SandboxError, match="no bubblewrap"):
            run([Program(RIGHT, TEST)])
    finally:
        check_sandbox.cache_clear()


class TestPolicyOfAMachineWithoutASandbox:
    @pytest.fixture(autouse=True)
    def no_bubblewrap(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        check_sandbox.cache_clear()
        monkeypatch.setattr("eval_gates.sandbox.bubblewraps", lambda: iter(()))
        yield
        check_sandbox.cache_clear()

    @staticmethod
    def policy(suites: dict[str, Any]) -> Policy:
        given = {name: {"margins": {"fp8": 0.02}, **suite} for name, suite in suites.items()}
        return Policy.model_validate({"name": "p", "summary": "s", "suites": given})

    def test_a_code_suite_may_be_left_out_and_this_is_told(self) -> None:
        skipped = {"kind": "humaneval", "if_no_sandbox": "skip"}
        found, notes = without_uncontained(self.policy({"mmlu": {"kind": "mmlu"}, "code": skipped}))
        assert list(found.suites) == ["mmlu"]
        assert notes == [
            "code is not run, as the policy allows: model-written code cannot be contained here: "
            "no bubblewrap"
        ]

    def test_it_is_refused_unless_the_policy_says_so(self) -> None:
        found, notes = without_uncontained(
            self.policy({"mmlu": {"kind": "mmlu"}, "code": {"kind": "humaneval"}})
        )
        assert (list(found.suites), notes) == (["mmlu", "code"], [])
        with pytest.raises(SandboxError):
            kind_of(found.suites["code"]).check_machine(found.suites["code"])

    def test_a_policy_of_nothing_else_is_refused(self) -> None:
        with pytest.raises(SandboxError):
            without_uncontained(
                self.policy({"code": {"kind": "humaneval", "if_no_sandbox": "skip"}})
            )

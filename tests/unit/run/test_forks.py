"""Forks of a warm interpreter: all that a process of its own would have, and nothing outlives us.

Each is really forked and really killed. What is forked here runs a line of Python that the test
gives it, in place of `prepare`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.run.executors import forks
from pipeline.run.executors.forks import KILLED, ForkedProcess, Forks

SERVER = """
import socket, sys
from pipeline.run.executors.forks import serve

def run():
    exec(sys.argv[1], {"sys": sys})
    raise SystemExit(0)

serve(socket.socket(fileno=int(sys.argv[1])), run)
"""
WAIT = "import time; print('ready', flush=True); time.sleep(60)"
DRIVER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pipeline.run.executors import forks
forks.SERVER = "fork_server"
server = forks.Forks()
with open(sys.argv[3], "ab") as log:
    started = server.start([sys.argv[2]], environment=dict(os.environ), errors=log)
started.output.readline()
print("started", flush=True)
time.sleep(60)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ForkedProcess]:
    """Starts a fork that runs some Python; all are of one interpreter."""
    (tmp_path / "fork_server.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setattr(forks, "SERVER", "fork_server")
    monkeypatch.setattr(forks, "STOP_GRACE_SECONDS", 0.5)
    server = Forks()

    def start(script: str, held: tuple[int, ...] = (), **environment: str) -> ForkedProcess:
        with log.open("ab") as errors:
            return server.start(
                [script],
                environment={**os.environ, **environment},
                errors=errors,
                held_descriptors=held,
            )

    return start


def print_of(expression: str) -> str:
    return f"import json, os, sys, signal; print(json.dumps({expression}))"


def answer(process: ForkedProcess) -> object:
    found = json.loads(process.output.read())
    assert process.wait() == 0
    process.stop()
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


Start = Callable[..., ForkedProcess]


def test_what_it_prints_its_log_and_its_exit_code(start: Start, log: Path) -> None:
    process = start("print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)")
    assert process.output.read() == b"out\n"
    assert process.wait() == 7
    process.stop()
    process.stop()
    assert log.read_text() == "err\n"


def test_it_has_the_variables_that_it_is_given_and_no_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(start(print_of("1")))  # the interpreter is there before the variable is
    monkeypatch.delenv("HOME")
    found = answer(start(print_of("dict(os.environ)"), OWN="set"))
    assert found == {**os.environ, "OWN": "set"}


def test_it_inherits_no_descriptor_and_no_handler(start: Start) -> None:
    handlers = "[signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGCHLD)]"
    assert answer(start(print_of(handlers))) == [True, True]
    # The folder that is listed is open, too, and what guards below it are to hold.
    opened = "len([name for name in os.listdir('/proc/self/fd') if int(name) > 2])"
    assert answer(start(print_of(opened))) == 2
    passed_on = "subprocess.check_output('ls /proc/self/fd | wc -w', shell=True, close_fds=False)"
    assert answer(start(f"import subprocess; {print_of(f'int({passed_on})')}")) == 4


def test_ps_shows_what_it_runs_under_a_guard_in_a_session_of_its_own(
    start: Start, log: Path
) -> None:
    script = f"{WAIT}  # {log}"  # nobody else's
    process = start(script)
    assert process.output.readline() == b"ready\n"
    (guard,) = [
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if b"guard.py" in _command(each) and script.encode() in _command(each)
    ]
    (child,) = [
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if script.encode() in _command(each) and b"guard.py" not in _command(each)
        and each.name != str(os.getpid())
    ]  # fmt: skip
    assert parent_of(child) == guard
    assert os.getsid(child) == os.getpgid(child) == guard != os.getsid(0)
    process.stop()
    assert is_gone(child, 0)
    assert is_gone(guard)


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_its_whole_group_ends_when_it_is_stopped(start: Start) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    tree = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {stubborn!r}]); "
        "print(p.pid, flush=True); p.wait()"
    )
    process = start(tree)
    grandchild = int(process.output.readline())
    stopping = threading.Thread(target=process.stop)
    stopping.start()
    assert process.wait() != 0  # in another thread than the one that stops it
    stopping.join()
    assert is_gone(grandchild, 0)


def test_many_at_once(start: Start) -> None:
    started = [start(print_of(str(number))) for number in range(12)]
    assert [answer(process) for process in started] == list(range(12))


def test_a_killed_one_is_told_as_a_shell_does(start: Start) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert process.wait() == KILLED
    process.stop()


def test_where_its_guard_is_killed_it_ends(start: Start) -> None:
    process = start("import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)")
    guard, child = map(int, process.output.readline().split())
    os.kill(guard, signal.SIGKILL)
    assert process.wait() == KILLED
    process.stop()
    assert is_gone(child)


def test_where_the_interpreter_is_killed_what_it_forked_goes_on_and_another_starts(
    start: Start,
) -> None:
    parent = "open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]"
    first = start(
        f"import os, time; print({parent}, flush=True); time.sleep(0.5); print('done', flush=True)"
    )
    server = int(first.output.readline())
    os.kill(server, signal.SIGKILL)
    assert is_gone(server)
    second = start(print_of(f"int({parent})"))
    assert answer(second) != server
    assert first.output.read() == b"done\n"
    assert first.wait() == 0
    first.stop()


def test_what_is_held_is_held_by_the_guard_alone_until_the_group_has_ended(start: Start) -> None:
    read, write = os.pipe()
    process = start(WAIT, (write,))
    os.close(write)
    assert process.output.readline() == b"ready\n"
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    process.stop()
    assert os.read(read, 1) == b""
    os.close(read)


def test_where_its_guard_is_killed_what_is_held_is_held_until_its_own_children_are_gone(
    start: Start,
) -> None:
    """As a sitting's model server, which has a guard of its own and takes its time."""
    stubborn = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    sitting = (
        "import os, sys, time; from pipeline.core.processes import GuardedProcess; "
        f"server = GuardedProcess([sys.executable, '-c', {stubborn!r}], output=-1, "
        "environment=os.environ, grace_seconds=1); "
        "print(os.getppid(), int(server.output.readline()), flush=True); time.sleep(60)"
    )
    read, write = os.pipe()
    process = start(sitting, (write,))
    os.close(write)
    guard, server = map(int, process.output.readline().split())
    os.kill(guard, signal.SIGKILL)
    assert os.read(read, 1) == b""  # as soon as it is held by nobody
    os.close(read)
    assert is_gone(server, 0)
    assert process.wait() == KILLED
    process.stop()


def test_nothing_outlives_a_killed_driver(
    tmp_path: Path, log: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was forked nor the interpreter that it was forked from."""
    pids = tmp_path / "pids"
    script = (
        f"import os, time; f = open({str(pids)!r}, 'w'); parent = os.getppid(); "
        "server = open(f'/proc/{parent}/stat').read().rpartition(')')[2].split()[1]; "
        "f.write(f'{os.getpid()} {parent} {server}'); f.close(); print(1, flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), script, str(log)], stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"started\n"
        driver.kill()
    for pid in map(int, pids.read_text().split()):
        assert is_gone(pid)

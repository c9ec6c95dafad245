"""Guarded processes: exit codes come through, descriptors do not, and nothing outlives us.

Every process here is real; whether one is left is read from /proc by its process group.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prepare import supervisor
from prepare.supervisor import SupervisedProcess

IGNORES_SIGTERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open(sys.argv[1], 'w').close(); time.sleep(60)"
)
# A tree as a server has one: a shell with two children, one of which cannot be asked to end.
TREE = 'sleep 60 & "$1" -I -c "$2" "$3" & wait'
OPEN_DESCRIPTORS = (
    "import json, os; "
    "print(json.dumps({n: os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') "
    "if os.path.exists(f'/proc/self/fd/{n}')}))"
)
PARENT = """
import subprocess, sys, time
from prepare.supervisor import SupervisedProcess

process = SupervisedProcess(
    sys.argv[1:], environment={"PATH": "/usr/bin:/bin"}, output=subprocess.DEVNULL,
    grace_seconds=0.3,
)
print(process.pid, flush=True)
time.sleep(60)
"""


def tree_command(ready: Path) -> list[str]:
    return ["sh", "-c", TREE, "sh", sys.executable, IGNORES_SIGTERM, str(ready)]


def guarded(
    command: list[str], *, output: int = subprocess.DEVNULL, pass_descriptors: tuple[int, ...] = ()
) -> SupervisedProcess:
    return SupervisedProcess(
        command,
        environment={"PATH": os.environ["PATH"], "OWN": "set"},
        output=output,
        pass_descriptors=pass_descriptors,
        grace_seconds=0.3,
    )


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SupervisedProcess]:
    ready = tmp_path / "ready"
    with guarded(tree_command(ready)) as process:
        wait_until(ready.exists)
        assert len(group_members(process.pid)) == 4  # guard, shell, sleep, the stubborn one
        yield process


# --- exit codes and output ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_exit_codes_are_passed_on_as_a_shell_would(script: str, code: int) -> None:
    with guarded(["sh", "-c", script]) as process:
        assert process.wait() == code
        assert process.poll() == code


def test_a_command_that_does_not_exist_is_127_and_named() -> None:
    with guarded(["/no/such/program"], output=subprocess.PIPE) as process:
        text = process.output.read().decode()
        assert process.wait() == 127
    assert text == "cannot start /no/such/program: No such file or directory\n"


def test_output_environment_and_empty_input() -> None:
    with guarded(
        ["sh", "-c", 'cat; echo "$OWN ${HOME-unset}"; echo err >&2'], output=-1
    ) as process:
        assert process.output.read() == b"set unset\nerr\n"
        assert process.wait() == 0


# --- nothing is left ----------------------------------------------------------------------------


def test_stop_ends_the_whole_tree_even_what_ignores_sigterm(tree: SupervisedProcess) -> None:
    started = time.monotonic()
    tree.stop()
    assert group_members(tree.pid) == []
    assert time.monotonic() - started > 0.3  # the stubborn one had its grace
    assert tree.poll() == 128 + signal.SIGTERM  # not 0, which would look like success
    tree.stop()  # a second time is no error


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = '"$1" -I -c "$2" "$3" & while [ ! -e "$3" ]; do sleep 0.02; done; exit 5'
    with guarded(
        ["sh", "-c", script, "sh", sys.executable, IGNORES_SIGTERM, str(ready)]
    ) as process:
        assert process.wait() == 5
        assert group_members(process.pid) == []


@pytest.mark.parametrize("killed", ["what it runs", "its lifeline"])
def test_what_is_held_is_held_until_nested_guards_are_done(tmp_path: Path, killed: str) -> None:
    """A model's server has a guard and a separate session, and takes its time to end."""
    ready, lock = tmp_path / "ready", tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = SupervisedProcess(
            [sys.executable, "-c", PARENT, *tree_command(ready)],
            environment={**os.environ, "PYTHONPATH": str(Path.cwd())},
            output=subprocess.PIPE,
            held_descriptors=[held.fileno()],
            grace_seconds=5,
        )
    server = int(process.output.readline())
    wait_until(ready.exists)
    assert len(group_members(server)) == 4
    if killed == "its lifeline":
        process.stop()
    else:
        (parent,) = [pid for pid in group_members(process.pid) if pid != process.pid]
        os.kill(parent, signal.SIGKILL)
    with lock.open("w") as wanted:
        fcntl.flock(wanted, fcntl.LOCK_EX)
        assert group_members(server) == []
    process.stop()


def test_what_leaves_the_group_ends_too() -> None:
    command = "setsid sleep 60 >&- 2>&- & echo $!; sleep 0.2"
    with guarded(["sh", "-c", command], output=subprocess.PIPE) as process:
        left = int(process.output.readline())
        assert process.wait() == 0
        assert not Path(f"/proc/{left}").exists()


def test_a_parent_killed_by_sigkill_takes_the_tree_with_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *tree_command(ready)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        wait_until(ready.exists)
        assert len(group_members(group)) == 4
        parent.kill()
    wait_until(lambda: group_members(group) == [], seconds=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_guard_ends_the_tree(
    tree: SupervisedProcess, number: signal.Signals
) -> None:
    os.kill(tree.pid, number)
    assert tree.wait() == 128 + signal.SIGTERM
    assert group_members(tree.pid) == []


def test_a_guard_killed_by_sigkill_takes_its_command_with_it() -> None:
    with guarded(["sleep", "60"]) as process:
        wait_until(lambda: len(group_members(process.pid)) == 2)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == 128 + signal.SIGKILL
        wait_until(lambda: group_members(process.pid) == [])


def test_stop_ends_what_a_killed_guard_could_not(tree: SupervisedProcess) -> None:
    os.kill(tree.pid, signal.SIGKILL)
    assert tree.wait() == 128 + signal.SIGKILL
    assert group_members(tree.pid) != []  # its command's children are nobody's now
    tree.stop()
    wait_until(lambda: group_members(tree.pid) == [])


def test_leaving_the_block_by_an_exception_ends_the_tree(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    groups = []

    def fail() -> None:
        with guarded(tree_command(ready)) as process:
            groups.append(process.pid)
            wait_until(ready.exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert group_members(groups[0]) == []


def test_the_guard_is_apart_from_our_own_group() -> None:
    # Ctrl-C in a terminal reaches our group; how children end is ours to decide.
    with guarded(["sleep", "60"]) as process:
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
        assert os.getsid(process.pid) == process.pid


# --- descriptors --------------------------------------------------------------------------------


def open_descriptors(*passed: int) -> dict[int, str]:
    command = [sys.executable, "-I", "-c", OPEN_DESCRIPTORS]
    with guarded(command, output=subprocess.PIPE, pass_descriptors=passed) as process:
        found = json.loads(process.output.read())
    return {int(number): target for number, target in found.items()}


def test_the_command_inherits_nothing_but_the_standard_three() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        found = open_descriptors()
    finally:
        os.close(read)
        os.close(write)
    assert found[0] == os.devnull
    assert sorted(found) == [0, 1, 2]  # so not the lifeline either
    assert found[1] == found[2]


def test_passed_descriptors_reach_the_command() -> None:
    read, write = os.pipe()
    target = str(Path(f"/proc/self/fd/{write}").readlink())
    assert sorted(open_descriptors(write)) == [0, 1, 2, write]
    assert open_descriptors(write)[write] == target
    command = [sys.executable, "-I", "-c", f"import os; os.write({write}, b'event')"]
    with guarded(command, pass_descriptors=(write,)) as process:
        assert process.wait() == 0
    os.close(write)
    with os.fdopen(read) as lines:  # ends only because nobody holds the other end any more
        assert lines.read() == "event"


def test_a_later_process_does_not_keep_an_earlier_one_alive() -> None:
    with guarded(["sleep", "60"]) as first, guarded(["sleep", "60"]) as second:
        first.stop()
        assert first.poll() is not None
        assert second.poll() is None


def test_we_keep_no_descriptor_of_a_stopped_process() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with guarded(["true"], output=subprocess.PIPE) as process:
            process.wait()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_the_guard_runs_with_any_interpreter_and_no_project(tmp_path: Path) -> None:
    lifeline, ours = os.pipe()
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            supervisor.__file__,
            str(lifeline),
            "0.3",
            "",
            "sh",
            "-c",
            "exit 4",
        ],
        pass_fds=[lifeline],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
        check=False,
    )
    os.close(lifeline)
    os.close(ours)
    assert done.returncode == 4


TEMPORARY = """
import subprocess, sys, time
from pathlib import Path
from prepare.supervisor import SupervisedProcess

process = SupervisedProcess(
    ["sleep", "60"], environment={"PATH": "/usr/bin:/bin"}, output=subprocess.DEVNULL,
    temporary=Path(sys.argv[1]), grace_seconds=0.3,
)
print(process.pid, flush=True)
time.sleep(60)
"""


def test_its_temporary_folder_is_removed_after_a_kill(tmp_path: Path) -> None:
    """A server's socket, in a folder that nothing else would ever remove."""
    folder = tmp_path / "socket"
    folder.mkdir()
    (folder / "server").touch()
    command = [sys.executable, "-c", TEMPORARY, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert folder.exists()
        parent.kill()
    wait_until(lambda: not folder.exists())

"""Hostile and ordinary programs: only one whose checks ran to the end passes; none is left."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from eval_gates.suites.code_execution import Execution, run_many, run_program
from pipeline.errors import StageError

MEMORY = 128 * 2**20


def run(program: str, seconds: float = 10) -> Execution:
    return run_program(program, seconds=seconds, memory_bytes=MEMORY)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_program_whose_checks_hold_passes() -> None:
    assert run("def f(x): return x + 1\nassert f(1) == 2\n") == Execution(True, "passed", "")


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("assert 1 == 2, 'not equal'", "AssertionError: not equal"),
        ("def f(:\n", "SyntaxError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("x = '\x00'", "null bytes"),
        ("x = '\ud800'", "surrogates not allowed"),
        ("input()", "EOFError"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("import os\nos._exit(0)", "left with status 0 before its checks"),
        ("import os\nos._exit(3)\nassert True", "left with status 3"),
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(program: str, detail: str) -> None:
    execution = run(program)

    assert not execution.passed
    assert execution.outcome == "failed"
    assert detail in execution.detail


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(600)"])
def test_a_program_that_hangs_is_stopped(program: str) -> None:
    started = time.monotonic()
    execution = run(program, seconds=1)

    assert execution.outcome == "timeout"
    assert execution.detail == "still running after 1 s"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(2**40)",
        "x = []\nwhile True: x.append(bytearray(2**20))",
        "x = []\nwhile True: x.append([len(x)])",
    ],
)
def test_a_memory_bomb_meets_its_limit(program: str) -> None:
    execution = run(program)

    assert not execution.passed
    assert execution.outcome == "memory"


def test_endless_output_is_thrown_away() -> None:
    execution = run("while True: print('x' * 10_000)", seconds=1)

    assert execution.outcome == "timeout"
    assert execution.detail == "still running after 1 s"


def test_endless_errors_are_bounded() -> None:
    execution = run("import sys\nwhile True: sys.stderr.write('é' * 10_000)")

    assert execution.outcome == "failed"
    assert 0 < len(execution.detail) <= 500


def test_a_huge_file_meets_its_limit() -> None:
    assert "File too large" in run("open('big', 'wb').write(bytes(2**26))").detail


def test_only_the_end_of_the_errors_is_kept() -> None:
    execution = run("import sys\nsys.stderr.write('a' * 5000 + 'the end\\n')")

    assert execution.passed
    assert len(execution.detail) == 500
    assert execution.detail.endswith("the end")


def test_a_crash_is_named() -> None:
    execution = run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")

    assert execution.outcome == "crashed"
    assert "SIGSEGV" in execution.detail


def test_the_environment_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_TOKEN", "secret")

    execution = run(
        "import os, sys\n"
        "allowed = {'PATH', 'PYTHONHASHSEED', 'OPENBLAS_NUM_THREADS', 'LC_CTYPE'}\n"
        "assert set(os.environ) <= allowed, os.environ\n"
        "assert 'secret' not in open('/proc/self/environ').read()\n"
    )

    assert execution == Execution(True, "passed", "")


def test_the_working_directory_is_private_and_removed() -> None:
    execution = run(
        "import os, sys\nassert os.listdir() == []\nopen('f', 'w').write('x')\n"
        "print(os.getcwd(), file=sys.stderr)"
    )

    assert execution.passed
    assert execution.detail.startswith("/")
    assert not Path(execution.detail).exists()


def test_a_program_may_remove_its_own_directory() -> None:
    assert run("import os\nos.rmdir(os.getcwd())").passed


@pytest.mark.parametrize("parent", ["time.sleep(600)", "os._exit(0)", "pass"])
def test_a_child_process_is_not_left_behind(parent: str) -> None:
    execution = run(
        "import os, sys, time\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(600)\n"
        "print(pid, file=sys.stderr, flush=True)\n"
        f"{parent}\n",
        seconds=1,
    )

    if os.geteuid() != 0:  # the limit on processes binds everyone but root
        assert execution.outcome == "failed"
        assert "BlockingIOError" in execution.detail
        return
    child = int(execution.detail.split()[0])
    deadline = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)
    assert execution.passed == (parent == "pass")


def test_a_fork_that_reaches_the_end_does_not_pass_for_its_parent() -> None:
    execution = run("import os\nif os.fork(): os._exit(0) if os.wait() else None\nassert True")

    assert not execution.passed


@pytest.mark.parametrize(
    "program",
    [
        "import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'passed\\n')\n"
        "  except OSError: pass\nos._exit(0)",
        "print('passed')\nimport sys\nsys.exit(0)",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nassert False",
        "import os\nos._exit = lambda code: None\nos.write = lambda *a: None\nassert False",
        "import builtins\nbuiltins.exec = builtins.compile = None\nassert False",
        "import sys, threading\nsys.excepthook = lambda *a: None\nassert False",
    ],
)
def test_claiming_to_have_passed_is_not_passing(program: str) -> None:
    assert run(program).outcome == "failed"


def test_replacing_what_the_runner_uses_does_not_hide_a_pass() -> None:
    assert run("import os\nos._exit = os.write = os.getpid = None").passed


def test_strings_hash_alike_in_every_run() -> None:
    program = "import sys\nprint(hash('order'), file=sys.stderr)"

    assert run(program).detail == run(program).detail


def test_a_main_guard_does_not_run() -> None:
    assert run("if __name__ == '__main__': raise ValueError").passed


def test_a_runner_that_cannot_start_is_no_verdict_on_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))

    with pytest.raises(StageError, match="did not start"):
        run("pass")


class Heard:
    def __init__(self) -> None:
        self.advances: list[tuple[str, int, int | None, str]] = []

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.advances.append((task, done, total, unit))

    def note(self, text: str) -> None:
        raise AssertionError(f"nothing to note, but heard {text!r}")


def test_many_programs_keep_their_order_and_are_counted() -> None:
    heard = Heard()
    programs = [f"assert {number} % 3" for number in range(9)]

    executions = run_many(
        programs, seconds=10, memory_bytes=MEMORY, workers=2, progress=heard, task="check answers"
    )

    assert [execution.passed for execution in executions] == [False, True, True] * 3
    assert heard.advances == [("check answers", done, 9, "programs") for done in range(1, 10)]


def test_many_of_none() -> None:
    assert run_many([], seconds=1, memory_bytes=MEMORY) == []


def test_a_runner_that_cannot_start_stops_the_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))

    with pytest.raises(StageError, match="did not start"):
        run_many(["pass"] * 4, seconds=1, memory_bytes=MEMORY, workers=2)


def test_no_descriptor_is_leaked() -> None:
    run("pass")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("pass")

    assert len(list(Path("/proc/self/fd").iterdir())) == before

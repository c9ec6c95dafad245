"""Ordinary programs in every isolation: answers arrive complete, and failures are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from listener import Listener

from eval_gates.sandbox import (
    Execution,
    Isolation,
    Program,
    SandboxError,
    choose_isolation,
    fork_server,
    run_many,
    run_program,
)

MEMORY = 512 * 2**20
NONE = choose_isolation("none")
ROOT = str(Path(fork_server.__file__).parents[2])


def run(solution: str, test: str, isolation: Isolation, seconds: float = 20) -> Execution:
    program = Program(textwrap.dedent(solution), "f", textwrap.dedent(test))
    return run_program(program, seconds=seconds, memory_bytes=MEMORY, isolation=isolation)


HONEST = {
    "numbers": ("def f(x): return x + 1", "assert f(1) == 2 and f(0.5) == 1.5"),
    "several arguments": ("def f(x, *, y=2): return x * y", "assert (f(3, y=4), f(3)) == (12, 6)"),
    "text and containers": (
        "def f(x): return {'a': [x, (x, {x}), None]}",
        "assert f('ü') == {'a': ['ü', ('ü', {'ü'}), None]}",
    ),
    "huge numbers": ("def f(x): return 7 ** x", "assert f(20_000) == 7 ** 20_000"),
    "imports": (
        "import math, re, collections, itertools, heapq, random, string, hashlib, functools\n"
        "def f(x): return collections.Counter(re.findall(r'\\w', x)).most_common(1)",
        "assert f('aab') == [('a', 2)]",
    ),
    "numpy": (
        "import numpy as np\ndef f(x): return np.mean(x)",
        "assert abs(f([1, 2, 4]) - 7 / 3) < 1e-9",
    ),
    "counts, queues and dates": (
        "import collections, datetime\n"
        "def f(counts, queue, day):\n"
        "  queue.rotate(1)\n"
        "  return counts.most_common(1), queue, day + datetime.timedelta(1), counts.values()",
        "from collections import Counter, deque\nfrom datetime import date\n"
        "most, queue, day, values = f(Counter('aab'), deque([1, 2, 3]), date(2024, 2, 28))\n"
        "assert (most, queue, day) == ([('a', 2)], deque([3, 1, 2]), date(2024, 2, 29))\n"
        "assert sorted(values) == [1, 2]",
    ),
    "types": (
        "def f(x, kind): return [y for y in x if not isinstance(y, kind)]",
        "assert f([1, 'a', 2.5], float) == [1, 'a']",
    ),
    "arrays": (
        "def f(x): return x.T * 2",
        "import numpy\nassert (f(numpy.array([[1, 2]])) == [[2], [4]]).all()",
    ),
    "single precision": (
        "import numpy\ndef f(x): return numpy.float32(x)",
        "import numpy\nassert f(0.1) == numpy.float32(0.1)",
    ),
    "endless generators": (
        "def f(x):\n  while True:\n    yield x\n    x += 1",
        "from itertools import islice\na, b = f(1), f(5)\n"
        "assert list(islice(a, 5000)) == list(range(1, 5001))\n"
        "assert (next(b), next(a), next(b)) == (5, 5001, 6)",
    ),
    "generators that raise": (
        "def f(x):\n  yield from x\n  raise KeyError('end')",
        "seen = []\ntry:\n  for y in f('ab'): seen.append(y)\n"
        "except KeyError: assert seen == ['a', 'b']\nelse: assert False",
    ),
    "recursion": ("def f(x): return x and 1 + f(x - 1)", "assert f(900) == 900"),
    "generators": ("def f(x): yield from range(x)", "assert tuple(f(3)) == (0, 1, 2)"),
    "coroutines": (
        "import asyncio\nasync def g(x):\n  await asyncio.sleep(0)\n  return x\n"
        "def f(x): return asyncio.run(g(x))",
        "assert f(1) == 1",
    ),
    "state": ("seen = []\ndef f(x): seen.append(x); return len(seen)", "f(1)\nassert f(1) == 2"),
    "output": ("print('hello')\ndef f(x): print(x); return x", "assert f(1) == 1"),
    "files": (
        "def f(x):\n  open('a', 'w').write(x)\n  return open('a').read()",
        "assert f('text') == 'text'",
    ),
    "exceptions": (
        "def f(x): raise KeyError(x)",
        "try: f('x')\nexcept KeyError as error: assert 'x' in str(error)\nelse: assert False",
    ),
    "a main guard": ("if __name__ == '__main__': raise E\ndef f(x): return x", "assert f(1)"),
    "replacing what the solver uses": (
        "import os\nos._exit = os.write = os.read = os.getpid = None\ndef f(x): return x",
        "assert f(1) == 1",
    ),
    "a set's order": (
        "def f(x): return list({'one', 'two', 'three', 'four'})",
        "assert f(1) == list({'one', 'two', 'three', 'four'})",
    ),
    "long solutions": (f"x = {'y' * 200_000!r}\ndef f(x): return x", "assert f(1) == 1"),
}  # fmt: skip


def test_honest_programs_pass(isolation: Isolation) -> None:
    programs = [Program(solution, "f", test) for solution, test in HONEST.values()]
    executions = run_many(programs, seconds=60, memory_bytes=MEMORY, isolation=isolation)

    assert dict(zip(HONEST, executions, strict=True)) == {
        name: Execution(True, "passed", "") for name in HONEST
    }


def test_threads_work_in_a_sandbox(sandbox: Isolation) -> None:
    solution = """
        from concurrent.futures import ThreadPoolExecutor
        def f(x):
            with ThreadPoolExecutor(2) as pool: return list(pool.map(abs, x))
    """
    assert run(solution, "assert f([-1, 2]) == [1, 2]", sandbox).passed


def test_a_strict_umask_shuts_no_program_out(isolation: Isolation) -> None:
    """As a stage has it, whose files are ours alone, and many a user."""
    before = os.umask(0o077)
    try:
        done = run(
            """
            import numpy, os, subprocess
            def f(x):
                subprocess.run(["true"], stdout=subprocess.DEVNULL)
                open("/tmp/mine", "w").write(x)
                return open("/tmp/mine").read()
            """,
            "assert f('a') == 'a'",
            isolation,
        )
    finally:
        os.umask(before)
    assert done.outcome == "passed", done


@pytest.mark.parametrize(
    ("solution", "detail"),
    [
        ("def f(x): return x", "assert f(1) == 2, 'not equal'"),
        ("def f(:\n", "SyntaxError"),
        ("x = '\x00'", "null bytes"),
        ("x = '\ud800'", "surrogates not allowed"),
        ("def g(x): return 2", "name 'f' is not defined"),
        ("def f(x): return x.upper()", "'int' object has no attribute 'upper'"),
        ("def f(x): return f(x)", "RecursionError"),
        ("def f(x): return input()", "EOFError"),
        ("class E(Exception):\n  __str__ = None\ndef f(x): raise E", "E (and TypeError"),
        ("def f(x):\n  y = []\n  y.append(y)\n  return y", "RecursionError"),
        ("def f(x): return 'x' * 2**23", "too long"),
        ("def f(x): return {1: f}", "AssertionError"),
        ("f = 3", "'int' object is not callable"),
    ],
)
def test_a_wrong_program_fails_and_says_why(solution: str, detail: str) -> None:
    execution = run(solution, "assert f(1) == 2, 'not equal'", NONE)

    assert execution.outcome == "failed"
    assert detail in execution.detail


def test_a_test_that_expects_exceptions_is_not_passed_by_dying(isolation: Isolation) -> None:
    test = "for _ in range(3):\n  try: f(1)\n  except BaseException: pass"

    assert not run("import os\ndef f(x): os._exit(0)", test, isolation).passed
    assert run("def f(x): raise ValueError", test, isolation).passed


def test_what_a_function_does_to_its_arguments_stays_inside() -> None:
    assert run("def f(x): x.append(1)", "x = []\nf(x)\nassert x == []", NONE).passed


def test_a_crash_is_named(isolation: Isolation) -> None:
    solution = "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSEGV)"

    assert run(solution, "f(1)", isolation) == Execution(False, "crashed", "ended by SIGSEGV")


def test_the_end_of_standard_error_is_kept() -> None:
    execution = run(
        "import sys\nsys.stderr.write('a' * 5000 + 'end\\n')\ndef f(x): return", "", NONE
    )

    assert execution.passed
    assert execution.detail == "a" * 497 + "end"


@pytest.mark.parametrize("test", ["g(1)", "def f(:"])
def test_a_broken_test_is_no_verdict_on_the_solution(test: str) -> None:
    with pytest.raises(SandboxError) as caught:
        run("def f(x): return x", test, NONE)
    assert "isolation none" in caught.value.where


def test_a_name_missing_in_the_solution_is_a_verdict() -> None:
    assert run("def f(x): return g(x)", "f(1)", NONE).outcome == "failed"


@pytest.mark.parametrize("solution", ["def f(x): raise KeyError", "def f(x): raise NameError"])
def test_a_name_missing_for_want_of_an_answer_is_a_verdict(solution: str) -> None:
    test = "def check():\n  try: y = f(1)\n  except Exception: pass\n  assert y == 1\ncheck()"

    assert run(solution, test, NONE).outcome == "failed"


def test_a_solution_that_makes_its_errors_unreadable_ends_alone(isolation: Isolation) -> None:
    """What it sets on its standard error's description must not be set on ours."""
    solution = """
        import fcntl, os
        os.write(2, b'said ' * 1001)
        fcntl.fcntl(2, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)
        def f(x): return x
    """
    execution = run(solution, "assert f(1) == 2", isolation)

    assert execution.outcome == "failed"
    assert "AssertionError" in execution.detail


def test_what_is_no_text_arrives_as_one() -> None:
    execution = run("def f(x): raise ValueError('\\udc80')", "f(1)", NONE)

    assert "ValueError" in execution.detail
    execution.detail.encode()


def test_a_sandbox_that_cannot_start_stops_all(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    broken.chmod(0o755)
    isolation = Isolation("bubblewrap", str(broken))
    programs = [Program("def f(x): return x", "f", "f(1)")] * 4

    with pytest.raises(SandboxError, match="no such luck"):
        run_many(programs, seconds=5, memory_bytes=MEMORY, isolation=isolation)


def test_many_keep_their_order_and_are_counted() -> None:
    listener = Listener()
    programs = [Program(f"def f(x): return {n} % 3", "f", "assert f(0)") for n in range(9)]

    executions = run_many(
        programs,
        seconds=20,
        memory_bytes=MEMORY,
        isolation=NONE,
        workers=2,
        progress=listener,
        task="check answers",
    )

    assert [execution.passed for execution in executions] == [False, True, True] * 3
    assert listener.events == [("check answers", done, 9, "programs") for done in range(1, 10)]
    assert run_many([], seconds=1, memory_bytes=MEMORY, isolation=NONE) == []


def test_no_descriptor_is_leaked() -> None:
    run("def f(x): return x", "f(1)", NONE)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("def f(x): return x", "f(1)", NONE)

    assert len(list(Path("/proc/self/fd").iterdir())) == before


SLEEPERS = """
import sys
from eval_gates.sandbox import Program, choose_isolation, run_many
programs = [Program("import time\\ntime.sleep(600)", "f", "f(1)")] * 4
isolation = choose_isolation(sys.argv[1])
print("running", flush=True)
run_many(programs, seconds=600, memory_bytes=2**28, isolation=isolation, workers=2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_worker(
    number: signal.Signals,
    isolation: Isolation,
    left_behind: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPERS, isolation.kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"running\n"
        # A fork server, and the processes of at least two programs.
        await_descendants(worker.pid, 7)
        started = time.monotonic()
        worker.send_signal(number)
        worker.wait()
        assert worker.stderr is not None
        said = worker.stderr.read()

    assert left_behind() == []
    assert time.monotonic() - started < 15
    if isolation.kind != "none" or number != signal.SIGKILL:  # else nobody is there to remove them
        assert list(tmp_path.iterdir()) == []
    assert (b"KeyboardInterrupt" in said) == (number == signal.SIGINT), said


def await_descendants(pid: int, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(descendants(pid)) < count:
        assert time.monotonic() < deadline, descendants(pid)
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]

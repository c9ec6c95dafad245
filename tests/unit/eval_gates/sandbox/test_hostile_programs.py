"""Hostile programs in every isolation of this machine: none passes, nothing of them is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import (
    ENDLESS_TESTS,
    HOSTILE,
    HOSTILE_TESTS,
    RIGHT,
    SEARCH,
    TEST,
    contained,
    tries,
)
from refused_calls import REFUSED_CALLS

from eval_gates.sandbox import (
    Execution,
    Isolation,
    Program,
    choose_isolation,
    run_many,
    run_program,
)

MEMORY = 128 * 2**20
Runs = dict[str, Execution]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files, for as long as these programs run."""
    folder, before = tmp_path_factory.mktemp("temporary"), tempfile.tempdir
    folder.chmod(0o755)
    tempfile.tempdir = str(folder)
    yield folder
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def runs(
    isolation: Isolation, temporary: Path, left_behind: Callable[[], list[str]]
) -> dict[str, Execution]:
    """All programs, run concurrently."""
    os.environ["SOMEBODYS_TOKEN"] = "secret"
    ran = {}
    for seconds, endless in ((1, True), (20, False)):
        names = [
            name
            for name in HOSTILE
            if applies(name, isolation) and ("timeout" in HOSTILE[name].outcome) == endless
        ]
        executions = run_many(
            [Program(HOSTILE[name].solution, "f", HOSTILE[name].test) for name in names],
            seconds=seconds,
            memory_bytes=MEMORY,
            isolation=isolation,
            workers=4,
        )
        ran.update(zip(names, executions, strict=True))
    del os.environ["SOMEBODYS_TOKEN"]
    assert left_behind() == []
    assert list(temporary.iterdir()) == []
    return ran


def applies(name: str, isolation: Isolation) -> bool:
    return isolation.kind != "none" or not HOSTILE[name].sandboxed


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_ends_as_it_should(name: str, isolation: Isolation, runs: Runs) -> None:
    if not applies(name, isolation):
        pytest.skip("without a sandbox this is not prevented, as documented")

    assert not runs[name].passed
    assert runs[name].outcome in HOSTILE[name].outcome.split(), runs[name].detail
    assert len(runs[name].detail) <= 500


def test_a_hostile_test_is_contained(
    sandbox: Isolation, left_behind: Callable[[], list[str]]
) -> None:
    """Tests come with a dataset; they run in a sandbox as the solutions do."""
    programs = [Program(RIGHT, "f", contained(attempt)) for attempt in HOSTILE_TESTS.values()]
    ran = run_many(programs, seconds=20, memory_bytes=MEMORY, isolation=sandbox)
    told = dict(zip(HOSTILE_TESTS, ran, strict=True))
    assert {name: each for name, each in told.items() if not each.passed} == {}
    assert left_behind() == []


def test_hostile_tests_would_escape_without_a_sandbox() -> None:
    """So the attempts above are ones that can succeed."""
    names = ("reads the users", "opens a socket")
    programs = [Program(RIGHT, "f", contained(HOSTILE_TESTS[name])) for name in names]
    isolation = choose_isolation("none")
    ran = run_many(programs, seconds=20, memory_bytes=MEMORY, isolation=isolation)
    assert [each.passed for each in ran] == [False, False]


def test_a_test_that_does_not_end_is_ended(
    isolation: Isolation, left_behind: Callable[[], list[str]]
) -> None:
    names = [n for n in ENDLESS_TESTS if isolation.kind != "none" or n != "forks"]
    programs = [Program(RIGHT, "f", ENDLESS_TESTS[name][0]) for name in names]
    ran = run_many(programs, seconds=1, memory_bytes=MEMORY, isolation=isolation)
    for name, execution in zip(names, ran, strict=True):
        assert execution.outcome in ENDLESS_TESTS[name][1].split(), (name, execution)
    assert left_behind() == []


def attempts(texts: list[str], isolation: Isolation) -> list[Execution]:
    programs = [Program(tries(text), "f", TEST) for text in texts]
    return run_many(programs, seconds=20, memory_bytes=MEMORY, isolation=isolation)


def once(attempt: str, isolation: Isolation) -> Execution:
    return attempts([attempt], isolation)[0]


def test_files_of_the_user_cannot_be_read(tmp_path: Path, sandbox: Isolation) -> None:
    secret = tmp_path / "store" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    in_home = Path.home() / f".prepare-test-{os.getpid()}"
    paths = [secret, Path(__file__), Path("/etc/passwd"), Path("/etc/hostname")]
    if os.access(Path.home(), os.W_OK):
        in_home.write_text("secret")
        paths.append(in_home)
    ways = [f"{way}{path}" for path in paths for way in ("", "/proc/1/root", "/.outside")]
    try:
        ran = attempts([f"open({way!r}).read()\ndone = True" for way in ways], sandbox)
        without = attempts([f"open({str(secret)!r}).read()\ndone = True"], choose_isolation("none"))
    finally:
        if in_home in paths:
            in_home.unlink()

    assert without[0].passed
    for way, execution in zip(ways, ran, strict=True):
        assert not execution.passed, way
        assert "Error(" in execution.detail, (way, execution.detail)


def test_the_same_attempt_succeeds_where_the_file_may_be_seen(sandbox: Isolation) -> None:
    assert once("open('/proc/self/status').read()\ndone = True", sandbox).passed


def connects(family: str, address: object) -> str:
    return f"import socket\nsocket.socket(socket.{family}).connect({address!r})\ndone = True"


def test_servers_of_the_machine_cannot_be_reached(sandbox: Isolation) -> None:
    name = f"\0prepare-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        texts = [connects("AF_INET", tcp.getsockname()), connects("AF_UNIX", name)]
        over_tcp, over_unix = attempts(texts, sandbox)
        without = attempts(texts, choose_isolation("none"))
        tcp.settimeout(5)
        tcp.accept()[0].close()  # the one without a sandbox
        tcp.settimeout(0)
        with pytest.raises(BlockingIOError):
            tcp.accept()

    assert not over_tcp.passed
    assert "Error(" in over_tcp.detail
    assert "Error(" in over_unix.detail
    assert [execution.passed for execution in without] == [True, True]


def test_the_search_for_the_tests_would_find_them(isolation: Isolation) -> None:
    """Were they anywhere in the process, that is."""
    hidden = Program(f"hidden = [{TEST!r}]\n{tries(SEARCH)}", "f", TEST)

    assert run_program(hidden, seconds=20, memory_bytes=MEMORY, isolation=isolation).passed


def test_the_number_of_processes_is_limited(sandbox: Isolation) -> None:
    assert sandbox.processes_limited


def test_calls_that_no_program_needs_are_refused(sandbox: Isolation) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("system calls are filtered on x86-64 only, as documented")
    assert sandbox.calls_filtered

    ran = dict(zip(REFUSED_CALLS, attempts([*REFUSED_CALLS.values()], sandbox), strict=True))

    told = {name: (execution.outcome, execution.detail) for name, execution in ran.items()}
    assert {name: end for name, end in told.items() if end[0] != "failed"} == {}


@pytest.mark.parametrize("place", ["/usr/share", "/usr/local/share", "/usr/lib", "/usr"])
def test_a_store_among_the_systems_folders_is_hidden(place: str, sandbox: Isolation) -> None:
    if not os.access(place, os.W_OK):
        pytest.skip(f"{place} is not ours to write")
    with tempfile.TemporaryDirectory(prefix="prepare-test-", dir=place) as store:
        Path(store).chmod(0o755)
        secret = Path(store, "secret")
        secret.write_text("secret")
        hiding = replace(sandbox, hidden=(store,))

        execution = once(f"open({str(secret)!r}).read()\ndone = True", hiding)

    assert "FileNotFoundError(" in execution.detail


def test_the_session_keyring_is_not_handed_on(isolation: Isolation) -> None:
    """Seen from `none` too, where its calls are not refused."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of the calls are those of x86-64")
    own = keyring("join", "add")
    if own.returncode:
        pytest.skip(f"no keys to be had here: {own.stderr}")

    ran = keyring("join", "add", isolation.kind)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "failed\n"


READ_KEY = """
import ctypes
done = ctypes.CDLL(None).syscall(249, b"user", b"mine", None, 0) > 0
"""
KEYRING = f"""
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(250, 1, None, 0, 0, 0) < 0 or libc.syscall(248, b"user", b"mine", b"x", 1, -3) < 0:
    sys.exit(f"error {{ctypes.get_errno()}}")
from eval_gates.sandbox import Program, choose_isolation, run_program
for kind in sys.argv[3:]:
    solution = {tries(READ_KEY.strip())!r}
    isolation = choose_isolation(kind)
    program = Program(solution, "f", {TEST!r})
    print(run_program(program, seconds=20, memory_bytes=2**28, isolation=isolation).outcome)
"""


def keyring(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KEYRING, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
    )


SPIN = "import os\nfor _ in range(12):\n  if os.fork() == 0: break\nwhile True: pass"
# Needs more of a processor, over its two calls, than is its share within the limit.
WORK = (
    "import time\ndef f(x):\n  began = time.process_time()\n"
    "  while time.process_time() - began < 0.05: pass\n  return x + 1"
)


@pytest.mark.parametrize(
    ("others", "neighbours"), [(SPIN, 2), ("while True: pass", 15)], ids=["processes", "programs"]
)
def test_a_right_program_has_its_time_beside_many_that_spin(
    others: str, neighbours: int, sandbox: Isolation
) -> None:
    if os.getloadavg()[0] > 2 * len(os.sched_getaffinity(0)):
        pytest.skip("others have this machine's processors already")
    programs = [Program(others, "f", TEST)] * neighbours
    programs.insert(1, Program(WORK, "f", TEST))

    ran = run_many(
        programs, seconds=0.5, memory_bytes=MEMORY, isolation=sandbox, workers=len(programs)
    )

    assert [execution.outcome for execution in ran].count("timeout") == neighbours
    assert ran[1].passed, ran[1]


def test_programs_do_not_meet_each_other(sandbox: Isolation) -> None:
    """One leaves a file and a process; the next finds neither."""
    leave = "open('/tmp/left', 'w').close()\nimport os, time\nif os.fork() == 0: time.sleep(600)\n"
    find = tries("import os\ndone = os.listdir('/tmp') != [] or os.path.exists('/proc/4')")
    programs = [
        Program(leave + "def f(x): return x + 1", "f", TEST),
        Program(find, "f", TEST),
    ]

    ran = run_many(programs, seconds=10, memory_bytes=MEMORY, isolation=sandbox, workers=1)

    assert [execution.passed for execution in ran] == [True, False]


def test_an_answer_that_is_costly_to_judge_meets_a_limit() -> None:
    """It writes by itself what no set could be built from: numbers that all hash alike."""
    solution = (
        "import json, os\n"
        "def f(x):\n"
        "  numbers = [n * (2**61 - 1) for n in range(100_000)]\n"
        "  body = json.dumps({'value': {'set': numbers}}).encode()\n"
        "  for fd in range(3, 64):\n"
        "    try: os.write(fd, len(body).to_bytes(8, 'big') + body)\n"
        "    except OSError: pass\n"
        "  import time; time.sleep(600)\n"
    )
    started = time.monotonic()
    execution = run_program(
        Program(solution, "f", TEST),
        seconds=0.5,
        memory_bytes=MEMORY,
        isolation=choose_isolation("none"),  # it is the judge's own limit
    )

    assert execution.outcome == "timeout"
    assert time.monotonic() - started < 30

"""What counts as a run's own process, with real ones: two stores, and other people's engines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

HELPER = Path(__file__).parents[2] / "e2e" / "store_processes.py"
Start = Callable[..., int]


@pytest.fixture
def processes_of() -> Callable[[Path], list[str]]:
    """The function, which lies next to the tests that it is for and not on this folder's path."""
    spec = importlib.util.spec_from_file_location("store_processes_under_test", HELPER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Path], list[str]] = module.processes_of
    return found


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that calls itself what vLLM's inner ones do, with nothing but its output."""
    with ExitStack() as stack:

        def started(output: Path, *arguments: str, **environment: str) -> int:
            script = "import sys; print(flush=True); sys.stdin.read()"
            with output.open("wb") as file:
                process = stack.enter_context(
                    subprocess.Popen(
                        ["VLLM::Worker", "-I", "-c", script, *arguments],
                        executable=sys.executable,
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=file,
                    )
                )
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            return process.pid

        yield started


def test_a_process_is_known_by_the_store_that_it_writes_to_names_or_inherited(
    start: Start, processes_of: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    store, other, outside = (tmp_path / name for name in ("store", "other", "outside"))
    for folder in (store, other, outside):
        folder.mkdir()
    ours = {
        start(store / "server.log"),
        start(outside / "log", str(store / "spec.json")),
        start(outside / "log", PREPARE_STORE=str(store)),
    }
    theirs = start(other / "server.log")
    assert {int(line.split()[0]) for line in processes_of(store)} == ours
    assert {int(line.split()[0]) for line in processes_of(other)} == {theirs}
    assert all("VLLM::Worker" in line for line in processes_of(store))

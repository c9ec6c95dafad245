"""Isolations that work on this machine, and a look at what a run left behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eval_gates.sandbox import Isolation, SandboxError, choose_isolation, linux_syscalls

SANDBOXES = ("bubblewrap", "namespaces")


def available(kind: str) -> Isolation:
    """The isolation, or a skipped test that says why not."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    try:
        return choose_isolation(kind)  # type: ignore[arg-type]
    except SandboxError as error:
        if kind == "bubblewrap":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest) -> Isolation:
    """Each sandbox of this machine."""
    return available(request.param)


@pytest.fixture(scope="module", params=[*SANDBOXES, "none"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Each sandbox of this machine, and none."""
    return available(request.param)


@pytest.fixture(scope="module")
def left_behind() -> Iterator[Callable[[], list[str]]]:
    """Return a function that lists orphaned processes, after a delay in which they may end."""
    linux_syscalls.adopt_orphans(True)
    before = set(_children())

    def look() -> list[str]:
        deadline = time.monotonic() + 5
        left: dict[int, str] = {}
        while time.monotonic() < deadline:
            left = {pid: name for pid, name in _children().items() if pid not in before}
            if not left:
                break
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
        return list(left.values())

    yield look
    linux_syscalls.adopt_orphans(False)


def _children() -> dict[int, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == os.getpid():
            found[int(path.parent.name)] = head
    return found

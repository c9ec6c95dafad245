"""Lies here so that pytest puts this folder on the path: tests below import its stand-ins."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from empty_registry import fill
from hypothesis import settings

from artifacts import mlflow_store
from prepare.own_command import forget_places

# A machine that others use too is slow for a moment now and then; that is not our fault.
# The same examples in each run, so that a failure belongs to the change under test; `make fuzz`
# draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
# In the background (nohup, a CI runner) Ctrl-C is ignored, also by all that is started from there.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def quick_files() -> Iterator[None]:
    """Nothing waits for the disk: a process that is killed loses nothing that it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(mlflow_store, "fill", fill)
        yield


@pytest.fixture(autouse=True)
def node_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test waits for room on a node that others use, nor takes theirs."""
    monkeypatch.setenv("PREPARE_NODE_LOCKS", str(tmp_path_factory.mktemp("node")))


@pytest.fixture(autouse=True)
def places() -> Iterator[None]:
    """A command's store and registry are remembered for its process, which tests share."""
    yield
    forget_places()


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests themselves run in CI, no test writes into that job's summary and outputs."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

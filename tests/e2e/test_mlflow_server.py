"""The registry on a real `mlflow server`: races, kills, upload and pull, without a lock.

The server runs in a separate environment, made here from the lock in `mlflow_server/`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from free_port import free_port
from locked_environment import make_environment

from artifacts.registry.history import replay
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import TUPLE_TAG, AliasChange, ChangeReason
from artifacts.registry.registry_address import check_registry, still_has

# Who moves in a race is the same process as in the unit tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "artifacts" / "registry"))
import races

LOCK = Path(__file__).parent / "mlflow_server" / "server.txt"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
processes = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the server, independent of the packages of the tests."""
    return make_environment(tmp_path_factory.mktemp("environment"), LOCK)


@pytest.fixture(scope="module")
def uri(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own on loopback."""
    folder = tmp_path_factory.mktemp("mlflow")
    address = f"http://127.0.0.1:{free_port()}"
    command = [
        *(str(python), "-m", "mlflow", "server", "--host", "127.0.0.1"),
        *("--port", address.rpartition(":")[2], "--workers", "2"),
        *("--backend-store-uri", f"sqlite:///{folder / 'server.db'}"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    # Its jobs judge language models, and import what the lock leaves out.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                if httpx.get(f"{address}/health", timeout=2, trust_env=False).is_success:
                    break
            except httpx.HTTPError:
                assert server.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < deadline, (folder / "server.log").read_text()
                time.sleep(1)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


@pytest.fixture(scope="module")
def registry(uri: str) -> Iterator[MlflowRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        # On a machine that is busy the server was once seen not to answer for 20 s.
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        yield MlflowRegistry(uri)


@pytest.fixture
def name(registry: MlflowRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model with six versions; 2 is the champion, and 1 was it before."""
    model = f"model-{uuid.uuid4().hex}"
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    for digest in "abcdef":
        registry.register(model, tmp_path / "weights", {TUPLE_TAG: digest})
    for version, before in (("1", None), ("2", "1")):
        cause = ChangeReason("promote", "setup")
        registry.move_alias(model, AliasChange("champion", version, before, cause, "previous"))
    monkeypatch.setattr(races, "NAME", model)  # the server is one for all tests
    return model


def place_of(registry: MlflowRegistry) -> races.Place:
    return races.Place("mlflow", registry.uri)


def test_of_four_promotions_one_wins(registry: MlflowRegistry, name: str) -> None:
    barrier, answers = processes.Barrier(4), processes.Queue()
    runners = [
        processes.Process(
            target=races.move, args=(place_of(registry), races.promotion(*pair), barrier, answers)
        )
        for pair in zip("abcd", "3456", strict=True)
    ]
    for runner in runners:
        runner.start()
    outcomes = dict(answers.get(timeout=300) for _ in runners)
    for runner in runners:
        runner.join(60)
    registry.settle(name)
    (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
    assert all("moved meanwhile" in outcomes[who] for who in set("abcd") - {winner})
    entries = registry.history(name)
    assert [entry.who for entry in entries] == ["setup", "setup", winner]
    assert registry.aliases(name) == dict(replay(entries).aliases)
    assert registry.aliases(name)["previous"] == "2"


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_killed_before_a_write(registry: MlflowRegistry, name: str, step: int) -> None:
    runner = processes.Process(
        target=races.move,
        args=(place_of(registry), races.promotion("a", "3"), None, None, step),
    )
    runner.start()
    runner.join(120)
    assert runner.exitcode == -signal.SIGKILL
    finished = registry.settle(name)
    promised = step > 1
    assert [entry.who for entry in finished] == (["a"] if promised else [])
    assert registry.aliases(name) == (
        {"champion": "3", "previous": "2"} if promised else {"champion": "2", "previous": "1"}
    )


def test_it_is_looked_at_before_a_run(uri: str) -> None:
    check_registry(uri, "not there yet")
    assert "not there yet" not in MlflowRegistry(uri).names()


def test_weights_are_uploaded_and_fetched(
    registry: MlflowRegistry, name: str, tmp_path: Path
) -> None:
    version = registry.versions(name)[0]
    assert version.source.startswith("mlflow-artifacts:/")
    (tmp_path / "copy").mkdir()
    registry.fetch(version, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["config.json"]
    assert still_has(registry.uri, name, ["1", "6"], {"champion": "2"})
    assert not still_has(registry.uri, name, ["7"], {})
    assert f"{name}.history" not in registry.names()

"""The registry on a real `mlflow server`: the contract with its kills, and a team's script.

The server runs in a separate environment, made here from the lock in `mlflow_server/`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from free_port import free_port
from locked_environment import make_environment
from typer.testing import CliRunner

from artifacts.registry import Registry
from pipeline.cli.main import app

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from fake_run import judged_run
from registry_contract import Contract, register

LOCK = Path(__file__).parent / "mlflow_server" / "server.txt"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


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


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy the server was once seen not to answer for 20 s."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")


class TestContract(Contract):
    def test_files_are_uploaded(self, registry: Registry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        assert registry.versions(name)[0].source.startswith("mlflow-artifacts:/")


def test_the_script_of_a_team(uri: str, tmp_path: Path) -> None:
    """Measured in one job, approved, promoted in another, rolled back."""
    made = judged_run(tmp_path / "store", {"fp8-dynamic": 0, "awq-w4a16": 0}, uri=uri)
    store = ("--store", str(tmp_path / "store"))
    name = f"model-{uuid.uuid4().hex[:8]}"

    def prepare(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, *store, "--registry", uri, "--json"])
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    for recipe in ("fp8-dynamic", "awq-w4a16"):
        promoted = prepare("promote", f"{made.report.run}:{recipe}", "--name", name)
        assert promoted["moved"]
    assert not prepare("promote", f"{made.report.run}:awq-w4a16", "--name", name)["moved"]
    assert prepare("rollback", name, "--reason", "bad")["version"] == "1"
    pulled = tmp_path / "pulled"
    prepare("pull", f"{name}@champion", str(pulled))
    assert CliRunner().invoke(app, ["verify", str(pulled)]).exit_code == 0
    told = prepare("registry", "history", name)
    assert [each["action"] for each in told] == ["promote", "promote", "rollback"]

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
from registry_contract import Contract, killed_at, promote, race, register, roll_back, weights

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
    told = prepare("registry", name, "--history")
    assert [each["action"] for each in told] == ["promote", "promote", "rollback"]


def test_two_identical_runs_at_once_register_once(uri: str, tmp_path: Path) -> None:
    """Both runs of one store have the same weights and verdicts; their manifests differ."""
    made = judged_run(tmp_path / "store", {"fp8-dynamic": 0, "awq-w4a16": 0}, uri=uri)
    runs = [made.report.run, made.run().run]
    name = f"model-{uuid.uuid4().hex[:8]}"
    at = ("--name", name, "--store", str(tmp_path / "store"), "--registry", uri)
    command = [sys.executable, "-P", "-m", "prepare", "promote"]
    started = [
        subprocess.Popen([*command, f"{run}:fp8-dynamic", *at], stderr=subprocess.PIPE, text=True)
        for run in runs
    ]
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0], ended
    versions = Registry(uri).versions(name)
    assert len(versions) == 1, [each.tags for each in versions]
    assert Registry(uri).aliases(name) == {"champion": "1"}


@pytest.mark.of_everything
@pytest.mark.timeout(1800)
def test_trials_of_races_and_kills(uri: str, tmp_path: Path) -> None:
    """20 races and 40 kills over promotion and rollback; the figures are one line of JSON.

    A server does not exclude two moves within one second: then both are in the history.
    """
    registry, name = Registry(uri), f"trials-{uuid.uuid4().hex[:8]}"
    versions = register(registry, name, weights(tmp_path / "weights"), "abc")
    promote(registry, name, "1", None)
    figures = {"races": 0, "one_winner": 0, "two_winners": 0, "kills": 0, "completed": 0}
    for _ in range(20):
        current = registry.aliases(name)["champion"]
        rivals = [each for each in versions if each != current]
        before = len(registry.history(name))
        winners = race(uri, name, rivals, current).count(None)
        assert 1 <= winners <= 2
        assert registry.aliases(name)["champion"] in rivals
        assert len(registry.history(name)) == before + winners
        figures["races"] += 1
        figures["one_winner" if winners == 1 else "two_winners"] += 1
    for trial in range(40):
        way = registry.model(name)
        assert way is not None
        current = way.aliases["champion"]
        target = next(each for each in versions if each != current)
        is_rollback, kill_at, after = trial % 2 == 1, 1 + trial // 2 % 4, trial // 8 % 2 == 1

        def move(
            found: Registry, back: bool = is_rollback, to: str = target, at: str = current
        ) -> object:
            return roll_back(found, name, to=to) if back else promote(found, name, to, at)

        before = len(way.history)
        figures["kills"] += killed_at(uri, kill_at, move, after=after)
        if registry.aliases(name)["champion"] != target or not is_rollback:
            move(registry)  # the same command again
        model = registry.model(name)
        assert model is not None
        assert model.aliases["champion"] == target
        assert len(model.history) == before + 1
        assert model.history[-1].version == target
        figures["completed"] += 1
    print(json.dumps(figures))
    assert figures["kills"] == 40

"""What a sitting asks of the other nodes of its room, and what one of them does with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from listener import Listener
from model_server_stand_in import stand_in_python

from artifacts.model_to_serve import ModelToServe
from artifacts.serving_arguments import ServingArguments
from pipeline.cli.stage import run_server_part
from pipeline.core.errors import EnvironmentBuildError, ServingError
from pipeline.core.events import EventWriter
from pipeline.core.hardware import Hardware, hardware
from pipeline.core.node_address import VARIABLE
from pipeline.core.process_environment import travelling_environment
from pipeline.core.store import Store
from pipeline.environments.definition import Accelerator
from pipeline.run import endpoints, server_parts
from pipeline.run.endpoints import Servers
from pipeline.run.server_parts import OtherNodes, ServerPart
from recipes.catalog import load_profile

HERE = "127.0.0.1"
TOLD = EventWriter(sys.stderr.fileno())


@pytest.fixture(autouse=True)
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, HERE)


class Sitting:
    """Servers of one that is held on several nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events, descriptor = os.pipe()
        store = Store(folder / "store")
        stages: Any = SimpleNamespace(
            python_of=lambda _: stand_in_python(folder),
            log=SimpleNamespace(folder=folder, stage=lambda _: None),
            progress=Listener(),
            store=store,
        )
        others = OtherNodes(store.root, Accelerator.CPU, EventWriter(descriptor))
        self.servers = Servers(stages, others=others)

    def model(self, nodes: int, **environment: str) -> ModelToServe:
        serving = ServingArguments.of(load_profile("cpu"), is_baseline=False)
        serving.engine_arguments.update({"tensor-parallel-size": nodes, "nnodes": nodes})
        serving.environment.update(environment)
        return ModelToServe(
            name="fp8", folder=str(self.folder), arguments=serving, ready_timeout_seconds=20
        )

    def told(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(os.read(self._events, 1 << 16))
        return event


@pytest.fixture
def sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sitting]:
    monkeypatch.setattr(endpoints, "engine_version", lambda engine, python: "0.33.0")
    made = Sitting(tmp_path)
    yield made
    made.servers.close()


def test_parts_are_asked_for_before_the_server_and_ended_with_it(sitting: Sitting) -> None:
    facts = sitting.servers.open(sitting.model(3))
    told = sitting.told()
    assert (told["event"], told["name"]) == ("parts", "fp8")
    parts = [ServerPart.model_validate(task) for task in told["tasks"]]
    assert [part.node for part in parts] == [1, 2]
    command = facts["server"]["command"]
    assert command[command.index("--master-port") + 1] == str(parts[0].port)
    assert {part.first for part in parts} == {HERE}
    assert len({part.log for part in parts}) == 2
    sitting.servers.close()
    assert sitting.told() == {"event": "parts_over", "name": "fp8"}


def test_work_that_was_put_on_one_node_says_so(
    sitting: Sitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ServingError) as caught:
        sitting.servers.open(sitting.model(2))
    assert "ray" in (caught.value.cure or "")


def test_a_node_s_address_stays_there() -> None:
    assert VARIABLE not in travelling_environment(os.environ, "server_part")


def part_in(
    sitting: Sitting, monkeypatch: pytest.MonkeyPatch, of: Hardware, engine: str = ""
) -> Path:
    """The file of a part whose engine ends at once."""
    python = stand_in_python(sitting.folder)
    said = sitting.folder / "said"
    said.write_text("RuntimeError: connection closed by peer")
    monkeypatch.setattr(server_parts, "interpreters", lambda *_: lambda _: python)
    monkeypatch.setattr(server_parts, "identity", lambda *_: "i")
    task = ServerPart(
        store=str(sitting.folder / "store"),
        accelerator=Accelerator.CPU,
        hardware=of,
        engine=engine,
        log=str(sitting.folder / "part.log"),
        model=sitting.model(2, STAND_IN="dies", STAND_IN_LOG=str(said)),
        node=1,
        first=HERE,
        port=9,
    )
    file = sitting.folder / "part.json"
    file.write_text(task.model_dump_json())
    return file


def test_a_part_is_one_until_its_engine_ends(
    sitting: Sitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = part_in(sitting, monkeypatch, hardware("cpu"))
    with pytest.raises(ServingError, match="closed by peer"):
        run_server_part(file, TOLD)


def test_other_hardware_takes_no_part(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    file = part_in(sitting, monkeypatch, Hardware(accelerator="cpu", cpu="another"))
    with pytest.raises(ServingError, match="another"):
        run_server_part(file, TOLD)
    assert not (sitting.folder / "part.log").exists()


def test_another_engine_takes_no_part(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    file = part_in(sitting, monkeypatch, hardware("cpu"), engine="of another lock")
    with pytest.raises(EnvironmentBuildError, match="'serve'"):
        run_server_part(file, TOLD)
    assert not (sitting.folder / "part.log").exists()

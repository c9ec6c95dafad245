"""Which of several accepted tuples is served, and which environments are built to find out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from listener import Listener

from artifacts.registry.registry import FILES_TAG, TUPLE_TAG, WEIGHTS_TAG, Version
from pipeline import deployment, deployment_server
from pipeline.deployment import digest_of_other_files
from pipeline.deployment_server import Deployment
from pipeline.digest import digest_file
from pipeline.recheck_record import RecheckRecord
from pipeline.serving import ServingArguments
from pipeline.settings import Settings
from pipeline.weight_files import weights_digest

ENGINES = {"cpu": "0.32.0+cpu", "cuda": "0.32.0"}
HARDWARE = {
    "cpu": {"accelerator": "cpu", "cpu": "a processor", "cores": 2},
    "cuda": {"accelerator": "cuda", "gpu": "NVIDIA H100 80GB HBM3"},
}


def members(accelerator: str) -> dict[str, Any]:
    return {
        "engine_version": ENGINES[accelerator],
        "environment.serve": f"serve-{accelerator}",
        "serving": {"engine_arguments": {"seed": accelerator}, "environment": {}},
        "hardware": HARDWARE[accelerator],
    }


def version(folder: Path, judged: str, rechecked: str) -> Version:
    """Judged on one kind of machine, and found to stand on the other."""
    first = members(judged)
    record = RecheckRecord(
        when="2026-01-01T00:00:00+00:00",
        who="ann",
        run="r",
        tuple_digest="2" * 64,
        members=members(rechecked),
        changed=("hardware, accelerator",),
        verdict="pass",
        stands=True,
        reason="",
    )
    tags = {
        TUPLE_TAG: "1" * 64,
        WEIGHTS_TAG: weights_digest(folder, digest_file),
        FILES_TAG: digest_of_other_files(folder),
        "prepare.engine_version": first["engine_version"],
        "prepare.environment.serve": first["environment.serve"],
        "prepare.serving": json.dumps(first["serving"]),
        "prepare.hardware": json.dumps(first["hardware"]),
        **record.tags(),
    }
    return Version("model", "1", ("champion",), str(folder), tags)


@dataclass
class Place:
    """A machine that versions are to be served on, whose environments only count.

    Args:
        folder: of a version's files.
        settings: name a home and a store.
        engines: version of the engine in each environment, by accelerator.
    """

    folder: Path
    settings: Settings
    engines: dict[str, str] = field(default_factory=lambda: dict(ENGINES))
    hardware: dict[str, dict[str, Any]] = field(default_factory=dict)
    built: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    def has(self, *, gpu: bool, cpu: str) -> None:
        """Say what is in it."""
        self.hardware = {
            "cpu": {**HARDWARE["cpu"], "cpu": cpu},
            "cuda": HARDWARE["cuda"] if gpu else {"accelerator": "cuda", "gpu": "not found"},
        }

    def ensure(self, name: str, accelerator: str, *_: Any) -> SimpleNamespace:
        self.built[str(accelerator)] += 1
        return SimpleNamespace(accelerator=str(accelerator), python=Path(f"{name}-{accelerator}"))

    def engine_version_of(self, environment: SimpleNamespace) -> str:
        self.asked[environment.accelerator] += 1
        return self.engines[environment.accelerator]

    def deployment(self, judged: str, rechecked: str) -> Deployment:
        return Deployment(version(self.folder, judged, rechecked), None, self.settings, Listener())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    found = Place(folder, Settings(home=tmp_path / "home", store=tmp_path / "store"))
    monkeypatch.setattr(deployment, "hardware", lambda accelerator: found.hardware[accelerator])
    monkeypatch.setattr(deployment_server, "identity", lambda name, kind, _: f"{name}-{kind}")
    monkeypatch.setattr(deployment_server, "ensure", found.ensure)
    monkeypatch.setattr(deployment_server, "engine_version_of", found.engine_version_of)
    return found


def on_a_gpu_machine(place: Place) -> str:
    place.has(gpu=True, cpu="a server's processor")
    return "cuda"


def on_a_cpu_machine(place: Place) -> str:
    place.has(gpu=False, cpu="a processor")
    return "cpu"


HERE = pytest.mark.parametrize("machine", [on_a_gpu_machine, on_a_cpu_machine])
VERDICTS = pytest.mark.parametrize(
    ("judged", "rechecked"), [("cpu", "cuda"), ("cuda", "cpu")], ids=["cpu first", "cuda first"]
)


@HERE
@VERDICTS
def test_only_this_machines_environment_is_built(
    place: Place, machine: Any, judged: str, rechecked: str
) -> None:
    here = machine(place)
    found = place.deployment(judged, rechecked)
    assert found.differences() == []
    assert found.judged.hardware == HARDWARE[here]
    assert place.built == place.asked == {here: 1}


@VERDICTS
def test_each_tuple_is_held_against_its_own_engine(
    place: Place, judged: str, rechecked: str
) -> None:
    """A machine that is both: its processor is the judged one, and it has the GPU."""
    place.has(gpu=True, cpu="a processor")
    place.engines[judged] = "0.33.0"
    found = place.deployment(judged, rechecked)
    assert found.differences() == []
    assert found.judged.hardware == HARDWARE[rechecked]
    assert place.built == place.asked == {"cpu": 1, "cuda": 1}


def test_engines_that_differ_are_asked_once(place: Place) -> None:
    place.has(gpu=True, cpu="a processor")
    place.engines = {"cpu": "0.33.0", "cuda": "0.34.0"}
    found = place.deployment("cpu", "cuda")
    assert found.differences() == ["engine version: judged 0.32.0+cpu, here 0.33.0"]
    assert place.built == place.asked == {"cpu": 1, "cuda": 1}


def test_nothing_is_built_where_no_tuple_fits(place: Place) -> None:
    place.has(gpu=False, cpu="another processor")
    found = place.deployment("cuda", "cpu")
    assert found.differences() == ["hardware, gpu: judged NVIDIA H100 80GB HBM3, here not found"]
    assert place.built == {}


@HERE
@VERDICTS
def test_what_is_served_is_of_the_tuple_found(
    place: Place, machine: Any, judged: str, rechecked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path, ServingArguments]] = []

    class Recorded:
        """In the place of a server: notes what it was to be started with."""

        def __init__(
            self, python: Path, weights: Path, arguments: ServingArguments, *_: Any, **__: Any
        ) -> None:
            started.append((python, arguments))

        def start(self, *_: Any) -> None: ...

        def stop(self) -> None: ...

    monkeypatch.setattr(deployment_server, "Server", Recorded)
    monkeypatch.setattr(deployment_server, "port_is_free", lambda _: True)
    here = machine(place)
    found = place.deployment(judged, rechecked)
    assert found.differences() == []
    with found.serving(8000, 1.0):
        ((python, arguments),) = started
    assert python == Path(f"serve-{here}")
    assert arguments.engine_arguments == {"seed": here}
    assert place.built == {here: 1}

"""Which of several accepted tuples is served, and which environments are built to find out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import IDENTITIES, FakeRun, judged_run
from free_port import free_port, port_is_free
from listener import Listener
from some_node import NODE

from artifacts.deploy import serve as deployment_server
from artifacts.deploy.recheck_record import RecheckRecord
from artifacts.deploy.serve import Deployment
from artifacts.deployable import Deployable
from artifacts.registry import Version
from pipeline.environments.settings import Settings
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import CheckpointError, RegistryError, UsageError
from prepare.hardware import Hardware

PORT = free_port()
ENGINES = {"cpu": "0.32.0+cpu", "cuda": "0.32.0"}
HARDWARE = {
    "cpu": {**NODE.hardware("cpu").model_dump(), "cpu": "a processor"},
    "cuda": {"accelerator": "cuda", "gpu": "NVIDIA H100 80GB HBM3"},
}


def members(accelerator: str) -> dict[str, Any]:
    return {
        "weights": "a" * 64,
        "engine_version": ENGINES[accelerator],
        "environment.quantize": "0" * 64,
        "environment.serve": f"serve-{accelerator}",
        "environment.evaluate": "2" * 64,
        "serving": {
            "engine_arguments": {"seed": accelerator, "kv-cache-dtype": "fp8"},
            "environment": {},
        },
        "hardware": HARDWARE[accelerator],
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FakeRun]:
    found = {}
    for accelerator in ENGINES:
        of = members(accelerator)
        found[accelerator] = judged_run(
            tmp_path_factory.mktemp(accelerator) / "store",
            identities={**IDENTITIES, "serve": of["environment.serve"]},
            engine_version=of["engine_version"],
            serving=of["serving"],
            hardware=of["hardware"],
        )
    return found


def version(runs: dict[str, FakeRun], judged: str, rechecked: str) -> Version:
    record = RecheckRecord(
        when="2026-01-01T00:00:00+00:00",
        who="ann",
        run="r",
        tuple_digest="2" * 64,
        members=Deployable.model_validate(members(rechecked)),
        changed=("hardware, accelerator",),
        verdict="pass",
        stands=True,
        reason="",
    )
    return runs[judged].registered(**record.tags())


def taken_at_its_word(record: RecheckRecord, *_: Any) -> Deployable:
    """In the place of looking for the recheck's evidence, which test_recheck.py does."""
    return record.members


@dataclass
class Place:
    """A machine that versions are to be served on, whose environments only count.

    Args:
        runs: that judged, by accelerator.
        settings: name a home and a store.
        engines: version of the engine in each environment, by accelerator.
    """

    runs: dict[str, FakeRun]
    settings: Settings
    engines: dict[str, str] = field(default_factory=lambda: dict(ENGINES))
    hardware: dict[str, dict[str, Any]] = field(default_factory=dict)
    built: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    def has(self, *, gpu: bool, cpu: str) -> None:
        self.hardware = {
            "cpu": {**HARDWARE["cpu"], "cpu": cpu},
            "cuda": HARDWARE["cuda"] if gpu else {"accelerator": "cuda", "gpu": "not found"},
        }

    def ensure(self, name: str, accelerator: str, *_: Any) -> SimpleNamespace:
        self.built[str(accelerator)] += 1
        kind = str(accelerator)
        python = Path(f"{name}-{kind}")
        return SimpleNamespace(accelerator=kind, python=python, identity=python.name)

    def engine_version(self, _: str, python: Path) -> str:
        accelerator = python.name.removeprefix("serve-")
        self.asked[accelerator] += 1
        return self.engines[accelerator]

    def deployment(self, judged: str, rechecked: str) -> Deployment:
        return Deployment(version(self.runs, judged, rechecked), None, self.settings, Listener())


@pytest.fixture
def place(runs: dict[str, FakeRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(runs, Settings(home=tmp_path / "home", store=tmp_path / "store"))
    monkeypatch.setattr(
        deployment_server, "hardware", lambda kind: Hardware(**found.hardware[kind])
    )
    monkeypatch.setattr(deployment_server, "identity", lambda name, kind, _: f"{name}-{kind}")
    monkeypatch.setattr(deployment_server, "proven_tuple", taken_at_its_word)
    monkeypatch.setattr(deployment_server, "ensure", found.ensure)
    monkeypatch.setattr(deployment_server, "engine_version", found.engine_version)
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
    assert found.judged.hardware == Hardware(**HARDWARE[here])
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
    assert found.judged.hardware == Hardware(**HARDWARE[rechecked])
    assert place.built == place.asked == {"cpu": 1, "cuda": 1}


@HERE
@VERDICTS
def test_what_is_served_is_of_the_tuple_found(
    place: Place, machine: Any, judged: str, rechecked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path, ServingArguments]] = []

    class Recorded:
        """In the place of a server: notes what it was to be started with."""

        socket = Path("none")

        def __init__(
            self, python: Path, weights: Path, arguments: ServingArguments, *_: Any, **__: Any
        ) -> None:
            started.append((python, arguments))

        def start(self, *_: Any) -> None: ...

        def stop(self) -> None: ...

        def facts(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr(deployment_server, "Server", Recorded)
    here = machine(place)
    found = place.deployment(judged, rechecked)
    assert found.differences() == []
    with pytest.raises(UsageError, match="an API key"), found.start_server(PORT, 1.0, "0.0.0.0"):
        pass
    assert started == []
    with found.start_server(PORT, 1.0):
        ((python, arguments),) = started
    assert python == Path(f"serve-{here}")
    assert arguments.engine_arguments == {"seed": here, "kv-cache-dtype": "fp8"}
    assert place.built == {here: 1}


def test_a_server_with_other_kernels_does_not_answer(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = judged_run(
        tmp_path / "kernels" / "store",
        lost={"fp8-dynamic": 0},
        identities={**IDENTITIES, "serve": "serve-cpu"},
        engine_version=ENGINES["cpu"],
        hardware=HARDWARE["cpu"],
        kernels={"attention": "FLASH_ATTN"},
    )
    place.has(gpu=False, cpu="a processor")
    stopped: list[Server] = []
    monkeypatch.setattr(Server, "socket", Path("none"))
    monkeypatch.setattr(Server, "start", lambda *_: None)
    monkeypatch.setattr(Server, "stop", lambda server: stopped.append(server))
    deployment = Deployment(run.registered(), None, place.settings, Listener())
    assert deployment.differences() == []
    monkeypatch.setattr(Server, "facts", lambda _: {"attention": "FLASHINFER"})
    with (
        pytest.raises(RegistryError, match="attention: judged FLASH_ATTN, here FLASHINFER"),
        deployment.start_server(PORT, 1.0),
    ):
        pass
    assert len(stopped) == 1
    # The port opens when the kernels are those of the verdict, not before.
    monkeypatch.setattr(Server, "start", lambda *_: opened.append(not port_is_free(PORT)))
    opened: list[bool] = []
    with deployment.start_server(PORT, 1.0, allow_mismatch=True):
        opened.append(not port_is_free(PORT))
    opened.append(not port_is_free(PORT))
    assert opened == [False, True, False]
    monkeypatch.setattr(Server, "facts", lambda _: {"attention": "FLASH_ATTN"})
    with deployment.start_server(PORT, 1.0):
        pass


class TestWhatIsTrusted:
    """A registry's writer may set any tag; nothing of that is served."""

    def deployment(self, place: Place, run: FakeRun, **options: Any) -> Deployment:
        place.has(gpu=False, cpu="a processor")
        changes = options.pop("changes", {})
        return Deployment(run.registered(**changes), None, place.settings, Listener(), **options)

    def test_code_that_comes_with_it(
        self, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = judged_run(
            tmp_path / "own" / "store",
            lost={"fp8-dynamic": 0},
            identities={**IDENTITIES, "serve": "serve-cpu"},
            hardware=HARDWARE["cpu"],
            trust_remote_code=True,
        )
        with pytest.raises(CheckpointError) as caught:
            self.deployment(place, run)
        assert caught.value.where == "model version 1"
        assert "--trust-remote-code" in caught.value.hint
        found = self.deployment(place, run, trust_remote_code=True)
        monkeypatch.setattr(Server, "socket", Path("none"))
        monkeypatch.setattr(Server, "start", lambda *_: None)
        with found.start_server(PORT, 1.0) as server:
            assert server.command[-1] == "--trust-remote-code"

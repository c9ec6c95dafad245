"""Which of several accepted tuples is served here, by real processes of a site's interpreter.

The interpreter is a stand-in that tells an engine's version, and serves as the engine does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_server_stand_in
import pytest
from fake_run import IDENTITIES, FakeRun, judged_run
from free_port import free_port, port_is_free
from listener import Listener

from artifacts.deploy import serve as deployment_server
from artifacts.deploy.recheck_record import RecheckRecord
from artifacts.deploy.serve import Deployment
from artifacts.deployable import Deployable
from artifacts.recheck_report import RecheckReport
from artifacts.registry import Version
from pipeline.environments.environment import identity
from pipeline.environments.settings import EnvironmentOverride, Settings
from pipeline.serving.server import Server
from prepare.errors import CheckpointError, RegistryError, UsageError
from prepare.hardware import Hardware, hardware
from recipes.accelerator import Accelerator

PORT = free_port()
GPU = "NVIDIA H100 80GB HBM3"
NVIDIA_SMI = f"""#!/bin/sh
case "$1" in
-L) echo "GPU 0: {GPU} (UUID: GPU-1)";;
*) echo "580.10, 81559 MiB, 9.0";;
esac
"""
CPU_HARDWARE = hardware("cpu").model_dump()
HARDWARE = {"cpu": CPU_HARDWARE, "cuda": {"accelerator": "cuda", "gpu": GPU}}
INTERPRETER = """#!/bin/sh
[ ! -f "{report}" ] || export STAND_IN=reports STAND_IN_REPORT="$(cat "{report}")"
case "$*" in
*engine-version*) echo asked >>"{asked}"; echo "engine-version {version}";;
*importlib.metadata*) echo '{facts}';;
*) exec "{python}" -I "{server}" "$@";;
esac
"""


def layer_report(backend: str) -> str:
    layer = {"asked": "auto", "stored": "bfloat16", "bytes": 1.0, "backend": backend}
    layers = {"layers.0.attn": {**layer, "k_scale": [1.0, 1.0], "v_scale": [1.0, 1.0]}}
    return json.dumps({"version": "0.32.0", "layers": layers})


def kernels(backend: str) -> dict[str, str]:
    return {"attention": backend, "kv_cache": "bfloat16", "kv_scales": "none"}


@dataclass(frozen=True)
class Site:
    """A machine whose settings name an interpreter for serving."""

    folder: Path
    version: str  # of its engine

    def __post_init__(self) -> None:
        self.folder.mkdir()
        versions = {"vllm": self.version}
        facts = {"python": "3.11.9", "versions": versions, "missing": [], "cuda": "13.0"}
        self.python.write_text(
            INTERPRETER.format(
                asked=self.folder / "asked",
                report=self.report,
                version=self.version,
                facts=json.dumps(facts),
                python=sys.executable,
                server=model_server_stand_in.__file__,
            )
        )
        self.python.chmod(0o755)

    @property
    def python(self) -> Path:
        return self.folder / "python"

    @property
    def report(self) -> Path:
        """What its engine reports of the KV cache; nothing without the file."""
        return self.folder / "report"

    @property
    def settings(self) -> Settings:
        serving = {"serve": EnvironmentOverride(python=self.python)}
        return Settings(
            home=self.folder / "home", store=self.folder / "store", environments=serving
        )

    @property
    def identity(self) -> str:
        return identity("serve", Accelerator.CPU, self.settings)

    @property
    def times_asked(self) -> int:
        """How often the engine was imported to ask for its version."""
        asked = self.folder / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0

    def members(self, accelerator: str, **changes: Any) -> dict[str, Any]:
        return {
            "weights": "a" * 64,
            "engine_version": self.version,
            "environment.quantize": "0" * 64,
            "environment.serve": self.identity,
            "environment.evaluate": "2" * 64,
            "serving": {
                "engine_arguments": {"seed": accelerator, "kv-cache-dtype": "auto"},
                "environment": {},
            },
            "hardware": HARDWARE[accelerator],
            **changes,
        }

    def judged(self, name: str, accelerator: str, **changes: Any) -> FakeRun:
        """A run that was judged on such a machine."""
        members = self.members(accelerator)
        facts = {
            "engine_version": members["engine_version"],
            "serving": members["serving"],
            "hardware": members["hardware"],
            **changes,
        }
        return judged_run(
            self.folder / name / "store",
            lost={"fp8-dynamic": 0},
            identities={**IDENTITIES, "serve": self.identity},
            **facts,
        )

    def deployment(self, version: Version, **options: Any) -> Deployment:
        return Deployment(version, None, self.settings, Listener(), **options)


def rechecked(run: FakeRun, members: dict[str, Any]) -> Version:
    record = RecheckRecord(
        when="2026-01-01T00:00:00+00:00",
        who="ann",
        tuple_digest="2" * 64,
        members=Deployable.model_validate(members),
        changed=("hardware, accelerator",),
        report=RecheckReport(cell="neither"),
        stands=True,
    )
    return run.registered(**record.tags())


@pytest.fixture
def recheck_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its evidence is looked for in test_recheck.py."""

    def members_of(record: RecheckRecord, *_: Any) -> Deployable:
        return record.members

    monkeypatch.setattr(deployment_server, "proven_tuple", members_of)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site") / "site", "0.32.0")


@pytest.fixture(params=["cpu", "cuda"])
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of this machine; one with a GPU has another processor than the tuples."""
    if request.param == "cuda":
        driver = tmp_path / "nvidia-smi"
        driver.write_text(NVIDIA_SMI)
        driver.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return str(request.param)


@pytest.mark.usefixtures("recheck_is_believed")
@pytest.mark.parametrize("judged", ["cpu", "cuda"])
def test_the_tuple_of_this_machine_is_served(
    site: Site, here: str, judged: str, tmp_path: Path
) -> None:
    other = "cuda" if judged == "cpu" else "cpu"
    elsewhere = {"hardware": {**CPU_HARDWARE, "cpu": "a processor of no machine"}}
    changes = elsewhere if here == "cuda" else {}
    run = site.judged(tmp_path.name, judged, **(changes if judged == "cpu" else {}))
    version = rechecked(run, site.members(other, **(changes if other == "cpu" else {})))
    before = site.times_asked
    deployment = site.deployment(version)
    assert deployment.differences() == []
    assert deployment.judged.hardware == Hardware(**HARDWARE[here])
    assert site.times_asked - before <= 1  # of the other kind's environment nothing is asked
    with deployment.start_server(PORT, 30.0) as server:
        assert f"--seed {here}" in " ".join(facts_of(server)["arguments"])


@pytest.mark.usefixtures("recheck_is_believed")
def test_each_tuple_is_held_against_its_own_engine(tmp_path: Path) -> None:
    site = Site(tmp_path / "newer", "0.33.0")
    run = site.judged("run", "cpu", engine_version="0.32.0")
    assert "0.32.0" in "; ".join(site.deployment(run.registered()).differences())
    deployment = site.deployment(rechecked(run, site.members("cpu")))
    assert deployment.differences() == []
    assert deployment.judged.engine_version == "0.33.0"


def test_a_public_address_needs_a_key(site: Site, tmp_path: Path) -> None:
    deployment = site.deployment(site.judged(tmp_path.name, "cpu").registered())
    with (
        pytest.raises(UsageError, match="an API key"),
        deployment.start_server(PORT, 30.0, "0.0.0.0"),
    ):
        pytest.fail("it was started")
    assert port_is_free(PORT)


class TestKernels:
    @pytest.fixture
    def deployment(self, tmp_path: Path) -> Callable[[str], Deployment]:
        """One that was judged with FLASH_ATTN; the engine here reports what is given."""
        site = Site(tmp_path / "site", "0.32.0")
        version = site.judged("run", "cpu", kernels=kernels("FLASH_ATTN")).registered()

        def make(backend: str) -> Deployment:
            site.report.write_text(layer_report(backend))
            return site.deployment(version)

        return make

    def test_a_server_with_others_does_not_answer(
        self, deployment: Callable[[str], Deployment]
    ) -> None:
        other = deployment("FLASHINFER")
        with (
            pytest.raises(RegistryError, match="attention: judged FLASH_ATTN, here FLASHINFER"),
            other.start_server(PORT, 30.0),
        ):
            pytest.fail("it answered")
        assert port_is_free(PORT)
        with other.start_server(PORT, 30.0, allow_mismatch=True):
            assert not port_is_free(PORT)
        assert port_is_free(PORT)

    def test_the_port_is_open_with_those_of_the_verdict(
        self, deployment: Callable[[str], Deployment]
    ) -> None:
        with deployment("FLASH_ATTN").start_server(PORT, 30.0):
            assert not port_is_free(PORT)


def test_code_that_comes_with_it_must_be_allowed(site: Site, tmp_path: Path) -> None:
    """A registry's writer may set any tag; nothing of that is served."""
    version = site.judged(tmp_path.name, "cpu", trust_remote_code=True).registered()
    with pytest.raises(CheckpointError) as caught:
        site.deployment(version)
    assert caught.value.where == "model version 1"
    assert "--trust-remote-code" in caught.value.hint
    allowed = site.deployment(version, trust_remote_code=True)
    with allowed.start_server(PORT, 30.0) as server:
        assert facts_of(server)["arguments"][-1] == "--trust-remote-code"


def facts_of(server: Server) -> dict[str, Any]:
    """Return what the stand-in was started with."""
    with server.client(timeout_seconds=10) as client:
        told: dict[str, Any] = client.get("/facts").json()
        return told

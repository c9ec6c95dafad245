"""Push and pull with a real OCI registry on loopback: Debian's docker-registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from free_port import free_port
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import RegistryError

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from fake_run import FakeRun, judged_run
from oci_stand_in import LOGIN

PROGRAM = shutil.which("docker-registry")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROGRAM is None, reason="docker-registry is not installed"),
]
# bcrypt of 'secret', as `htpasswd -Bbn ann secret` writes it.
HTPASSWD = "ann:$2b$05$5.yQ/yOoXPVfQvpMB/BV2O9qgAePAMdDhgaV0ZhINV4d6yuft/zom"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts registries of our own on loopback, with the login that is asked for."""
    running: list[subprocess.Popen[bytes]] = []

    def start(**auth: Any) -> str:
        host = f"127.0.0.1:{free_port()}"
        config = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(tmp_path / "remote")}},
            "http": {"addr": host},
            **({"auth": auth} if auth else {}),
        }
        (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
        command = [str(PROGRAM), "serve", str(tmp_path / "registry.yml")]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"http://{host}/v2/", timeout=2, trust_env=False)
                return host
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """A promoted variant; no login of the user who runs the tests."""
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = judged_run(tmp_path / "store", lost={"fp8-dynamic": 0})
    made.promote()
    return made


def prepare(*words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--insecure", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def push(run: FakeRun, where: str) -> Any:
    at = ("--registry", run.uri, "--store", str(run.root))
    return prepare("push", "model@champion", where, "--with-questions", *at)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_push_again_and_pull(started: Callable[..., str], run: FakeRun, tmp_path: Path) -> None:
    where = f"oci://{started()}/team/model"
    first, again = push(run, where), push(run, where)
    assert first["sent_bytes"] > again["sent_bytes"] == 0
    prepare("pull", first["digest_reference"], str(tmp_path / "pulled"))
    (version,) = run.registry.versions("model")
    assert content(tmp_path / "pulled") == content(Path(version.source))


def test_with_a_login(started: Callable[..., str], run: FakeRun, tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    host = started(htpasswd={"realm": "x", "path": str(tmp_path / "htpasswd")})
    with pytest.raises(RegistryError):
        push(run, f"oci://{host}/model")
    (tmp_path / ".docker").mkdir()
    login = {"auths": {host: {"auth": LOGIN}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(login))
    sent = push(run, f"oci://{host}/model")
    prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))

"""Push and pull with a real OCI registry on loopback: Debian's docker-registry.

`apt-get install docker-registry` (2.8.2 here); without it these tests are skipped.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml
from free_port import free_port
from typer.testing import CliRunner

from artifacts.registry import oci_repository
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import (
    FILES_TAG,
    TUPLE_TAG,
    WEIGHTS_TAG,
    AliasChange,
    ChangeReason,
    Registry,
)
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import digest_of_other_files
from pipeline.cli.main import app
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError

PROGRAM = shutil.which("docker-registry")
SKOPEO = shutil.which("skopeo")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROGRAM is None, reason="docker-registry is not installed"),
]
# bcrypt of 'secret', as `htpasswd -Bbn tester secret` writes it.
HTPASSWD = "tester:$2b$05$5.yQ/yOoXPVfQvpMB/BV2O9qgAePAMdDhgaV0ZhINV4d6yuft/zom"
NAME = "model"
MIB = 1024 * 1024


@dataclass
class Remote:
    """A registry that runs.

    Args:
        host: with its port.
        files: where it keeps them.
        log: what it was asked.
    """

    host: str
    files: Path
    log: Path

    def uploads(self) -> list[str]:
        """Requests that sent bytes of a blob, so far."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if '"PATCH /v2/' in line or '"PUT /v2/' in line]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Remote]]:
    """Starts registries of our own on loopback, with the login that is asked for."""
    running: list[subprocess.Popen[bytes]] = []

    def start(**auth: Any) -> Remote:
        port = free_port()
        remote = Remote(f"127.0.0.1:{port}", tmp_path / "remote", tmp_path / "registry.log")
        config = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(remote.files)}},
            "http": {"addr": remote.host},
            **({"auth": auth} if auth else {}),
        }
        (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
        with remote.log.open("wb") as log:
            command = [str(PROGRAM), "serve", str(tmp_path / "registry.yml")]
            running.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_for(remote)
        return remote

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


def wait_for(remote: Remote) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            answer = httpx.get(f"http://{remote.host}/v2/", timeout=2, trust_env=False)
            assert answer.status_code in (200, 401)
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, remote.log.read_text()
            time.sleep(0.1)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and logins of the user who runs the tests."""
    for name in ("PREPARE_STORE", "PREPARE_SETTINGS", "PREPARE_REGISTRY", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def layouts(tmp_path: Path) -> OciLayoutRegistry:
    """Two versions; 2 is the champion."""
    registry = OciLayoutRegistry(f"oci://{tmp_path / 'layouts'}")
    for number in (1, 2):
        promote(registry, checkpoint(tmp_path, number))
    return registry


def checkpoint(root: Path, number: int) -> Path:
    """A folder of a few MiB; the tokenizer is the same in all of them."""
    folder = root / f"weights {number}"
    (folder / "prepare-evidence").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes([number]) * (5 * MIB + number))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "number": number}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "prepare-evidence" / "empty").touch()
    return folder


def promote(registry: Registry, folder: Path) -> str:
    tags = {
        TUPLE_TAG: folder.name,
        WEIGHTS_TAG: weights_digest(folder, digest_file),
        FILES_TAG: digest_of_other_files(folder),
        "prepare.recipe": "fp8-dynamic",
        "prepare.override": "",
    }
    version = registry.register(NAME, folder, tags)
    replaces = registry.aliases(NAME).get("champion")
    registry.move_alias(
        NAME, AliasChange("champion", version, replaces, ChangeReason("promote", "ann"), "previous")
    )
    return version


def prepare(*words: str) -> Any:
    """The JSON value that the command prints."""
    result = CliRunner().invoke(app, [*words, "--insecure", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def push(registry: Registry, reference: str, where: str) -> Any:
    return prepare("push", reference, where, "--registry", registry.uri)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_push_again_and_pull(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    remote = started()
    where = f"{remote.host}/team/model"
    first = push(layouts, "model@champion", where)
    assert first["reference"] == f"{where}:champion"
    assert (first["sent"], first["present"]) == (5, 0)
    assert first["sent_bytes"] > 5 * MIB
    assert first["source"].endswith(f"@{first['digest']}")
    uploads = len(remote.uploads())

    again = push(layouts, "model@champion", where)
    assert (again["sent"], again["present"], again["sent_bytes"]) == (0, 5, 0)
    assert again["digest"] == first["digest"]
    assert len(remote.uploads()) == uploads + 1  # the manifest

    pulled = prepare("pull", f"oci://{where}:champion", str(tmp_path / "pulled"))
    assert pulled["tags"] == first["tags"]
    assert pulled["source"] == f"oci://{where}@{first['digest']}"
    assert content(tmp_path / "pulled") == content(tmp_path / "weights 2")
    by_digest = prepare("pull", f"oci://{where}@{first['digest']}", str(tmp_path / "same"))
    assert by_digest["files"] == pulled["files"] == 4


def test_a_tag_follows_the_alias(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    where = f"{started().host}/model"
    two = push(layouts, "model@champion", where)
    layouts.roll_back(NAME, "champion", ChangeReason("rollback", "ann"), to=None, replaces=None)
    one = push(layouts, "model@champion", where)
    assert one["digest"] != two["digest"]
    assert (one["sent"], one["present"]) == (3, 2)  # tokenizer and the empty file were there
    prepare("pull", f"oci://{where}:champion", str(tmp_path / "pulled"))
    assert content(tmp_path / "pulled") == content(tmp_path / "weights 1")
    numbered = push(layouts, "model@2", where)
    assert (numbered["reference"], numbered["sent"]) == (f"{where}:v2", 0)
    named = push(layouts, "model@2", f"{where}:tried")
    assert (named["reference"], named["digest"]) == (f"{where}:tried", two["digest"])


def test_large_blobs_go_in_pieces(
    started: Callable[..., Remote],
    layouts: OciLayoutRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oci_repository, "PIECE_BYTES", MIB)
    remote = started()
    push(layouts, "model@champion", f"{remote.host}/model")
    assert sum('"PATCH /v2/' in line for line in remote.uploads()) == 6
    prepare("pull", f"oci://{remote.host}/model:champion", str(tmp_path / "pulled"))
    assert content(tmp_path / "pulled") == content(tmp_path / "weights 2")


def test_from_mlflow_it_is_packed_on_the_fly(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    """The same files and tags have the digest that they have in a layout."""
    registry = MlflowRegistry(f"sqlite:///{tmp_path / 'registry.db'}")
    promote(registry, tmp_path / "weights 2")
    where = f"{started().host}/model"
    sent = push(registry, "model@champion", where)
    assert sent["digest"] == layouts.versions(NAME)[0].source.rpartition("@")[2]
    (tmp_path / "weights 2" / "config.json").write_text("changed")
    with pytest.raises(RegistryError, match="the other files"):
        push(registry, "model@champion", where)


def test_damaged_on_the_way(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    """A blob that the registry's disk changed is not pulled, and no folder appears."""
    remote = started()
    push(layouts, "model@champion", f"{remote.host}/model")
    digest = digest_file(tmp_path / "weights 2" / "model.safetensors")
    (blob,) = remote.files.rglob(f"{digest}/data")
    blob.write_bytes(b"\0" + blob.read_bytes()[1:])
    with pytest.raises(RegistryError, match="its digest differs") as caught:
        prepare("pull", f"oci://{remote.host}/model:champion", str(tmp_path / "pulled"))
    assert caught.value.where == f"{remote.host}/model@sha256:{digest}"
    assert not (tmp_path / "pulled").exists()


def test_a_damaged_blob_is_not_taken(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    """The registry hashes what it gets; the tag then names nothing."""
    remote = started()
    digest = digest_file(tmp_path / "weights 2" / "config.json")
    blob = layouts.folder / NAME / "blobs" / "sha256" / digest
    blob.chmod(0o644)
    blob.write_bytes(b"!" + blob.read_bytes()[1:])
    with pytest.raises(RegistryError, match="digest did not match"):
        push(layouts, "model@champion", f"{remote.host}/model")
    with pytest.raises(RegistryError, match="no such artifact"):
        prepare("pull", f"oci://{remote.host}/model:champion", str(tmp_path / "pulled"))


def test_a_killed_push_moves_no_tag(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    """Killed just before the manifest; the same command then sends nothing but that."""
    where = f"{started().host}/model"
    one = push(layouts, "model@1", f"{where}:champion")
    killed = multiprocessing.get_context("fork").Process(
        target=push_killed, args=(layouts.uri, where)
    )
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    pulled = prepare("pull", f"oci://{where}:champion", str(tmp_path / "pulled"))
    assert pulled["source"].endswith(one["digest"])
    again = push(layouts, "model@champion", where)
    assert (again["sent"], again["present"]) == (0, 5)


def push_killed(uri: str, where: str) -> None:
    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    oci_repository.OciRepository._put_manifest = die  # type: ignore[method-assign]
    push(OciLayoutRegistry(uri), "model@champion", where)


def test_nobody_answers(layouts: OciLayoutRegistry) -> None:
    where = f"127.0.0.1:{free_port()}/model"
    before = time.monotonic()
    with pytest.raises(RegistryError, match=r"the OCI registry failed: .*refused"):
        push(layouts, "model@champion", where)
    assert time.monotonic() - before < 30


def test_http_where_https_is_expected(
    started: Callable[..., Remote], layouts: OciLayoutRegistry
) -> None:
    words = ["push", "model@champion", f"{started().host}/model", "--registry", layouts.uri]
    with pytest.raises(RegistryError, match="the OCI registry failed") as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "--insecure" in caught.value.hint


class TestLogin:
    def login(self, folder: Path, host: str, password: str = "secret") -> None:
        """As `docker login` writes it."""
        token = base64.b64encode(f"tester:{password}".encode()).decode()
        (folder / ".docker").mkdir(exist_ok=True)
        (folder / ".docker" / "config.json").write_text(
            json.dumps({"auths": {host: {"auth": token}}})
        )

    def test_with_a_password(
        self, started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
    ) -> None:
        (tmp_path / "htpasswd").write_text(HTPASSWD)
        remote = started(htpasswd={"realm": "ours", "path": str(tmp_path / "htpasswd")})
        where = f"{remote.host}/model"
        with pytest.raises(RegistryError, match="wants a login") as caught:
            push(layouts, "model@champion", where)
        assert f"docker login {remote.host}" in caught.value.hint
        self.login(tmp_path, remote.host, "wrong")
        before = time.monotonic()
        with pytest.raises(RegistryError, match="the OCI registry failed"):
            push(layouts, "model@champion", where)
        assert time.monotonic() - before < 30
        self.login(tmp_path, remote.host)
        assert push(layouts, "model@champion", where)["sent"] == 5
        prepare("pull", f"oci://{where}:champion", str(tmp_path / "pulled"))
        assert content(tmp_path / "pulled") == content(tmp_path / "weights 2")

    def test_with_tokens(
        self, started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
    ) -> None:
        """Each token is for what was asked for first: one to read does not write."""
        with TokenService(tmp_path) as service:
            remote = started(token=service.settings())
            where = f"{remote.host}/model"
            self.login(tmp_path, remote.host)
            assert push(layouts, "model@champion", where)["sent"] == 5
            assert push(layouts, "model@champion", where)["sent"] == 0
            assert {"pull", "pull,push"} <= {
                ",".join(sorted(scope.rpartition(":")[2].split(","))) for scope in service.scopes
            }
            prepare("pull", f"oci://{where}:champion", str(tmp_path / "pulled"))
            assert content(tmp_path / "pulled") == content(tmp_path / "weights 2")
            self.login(tmp_path, remote.host, "wrong")
            with pytest.raises(RegistryError, match="the OCI registry failed"):
                push(layouts, "model@champion", where)


@pytest.mark.skipif(SKOPEO is None, reason="skopeo is not installed")
def test_other_tools_read_it(
    started: Callable[..., Remote], layouts: OciLayoutRegistry, tmp_path: Path
) -> None:
    """skopeo copies the layout's version to the registry, and it is pulled as judged."""
    where = f"{started().host}/model:champion"
    source = f"oci:{layouts.folder / NAME}:champion"
    command = [str(SKOPEO), "copy", "--dest-tls-verify=false", source, f"docker://{where}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    prepare("pull", f"oci://{where}", str(tmp_path / "pulled"))
    assert content(tmp_path / "pulled") == content(tmp_path / "weights 2")


class TokenService:
    """Gives out tokens as the Docker registry's token specification says, to `tester` only."""

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding

        self.scopes: list[str] = []
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .sign(self._key, SHA256())
        )
        self._certificate = certificate.public_bytes(Encoding.DER)
        self._bundle = folder / "tokens.pem"
        self._bundle.write_bytes(certificate.public_bytes(Encoding.PEM))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    def settings(self) -> dict[str, str]:
        """What the registry is to know of it."""
        return {
            "realm": f"http://127.0.0.1:{self._server.server_port}/token",
            "service": "registry",
            "issuer": "tokens",
            "rootcertbundle": str(self._bundle),
        }

    def __enter__(self) -> TokenService:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, scope: str) -> str:
        import jwt

        kind, name, actions = scope.split(":")
        now = int(time.time())
        claims = {
            "iss": "tokens",
            "sub": "tester",
            "aud": "registry",
            "exp": now + 300,
            "nbf": now - 10,
            "iat": now,
            "jti": "1",
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        chain = {"x5c": [base64.b64encode(self._certificate).decode()]}
        return jwt.encode(claims, self._key, algorithm="ES256", headers=chain)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self
        login = base64.b64encode(b"tester:secret").decode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Authorization") != f"Basic {login}":
                    self.send_error(401)
                    return
                (scope,) = parse_qs(urlsplit(self.path).query).get("scope", ["registry:catalog:*"])
                service.scopes.append(scope)
                body = json.dumps({"token": service.token(scope)}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        return Handler

"""Where `push` sends a login: to the registry that it was given for, and nowhere else."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from oras.auth.utils import parse_auth_header

from artifacts.registry.model_pack import Blob, ModelPack, PackedFile, pack
from artifacts.registry.oci_repository import OciRepository
from artifacts.registry.oras_client import OrasClient
from pipeline.core.errors import RegistryError

LOGIN = base64.b64encode(b"ann:secret").decode()
TOKEN = "a-token"


class Host:
    """A loopback server that keeps what it was sent."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, authorization
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda request: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                outer.asked.append((self.command, self.path, self.headers["Authorization"]))
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.answer(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = handle_any

            def log_message(self, *_: Any) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"127.0.0.1:{self.server.server_address[1]}"

    @property
    def credentials(self) -> set[str | None]:
        return {each[2] for each in self.asked}


def reply(request: BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(code)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


@contextmanager
def running(*hosts: Host) -> Iterator[None]:
    threads = [threading.Thread(target=h.server.serve_forever, daemon=True) for h in hosts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for host in hosts:
            host.server.shutdown()
            host.server.server_close()


def registry(own: Host, upload_to: str, kind: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """A registry with a login, of that kind, whose uploads go somewhere."""
    wanted = f"Bearer {TOKEN}" if kind == "token" else f"Basic {LOGIN}"
    challenge = f'Bearer realm="http://{own.name}/token",service="s"'

    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.path.startswith("/token"):
            known = request.headers["Authorization"] == f"Basic {LOGIN}"
            body = json.dumps({"token": TOKEN}).encode() if known else b""
            reply(request, 200 if known else 401, body)
        elif request.headers["Authorization"] != wanted:
            asks = challenge if kind == "token" else 'Basic realm="r"'
            reply(request, 401, WWW_Authenticate=asks)
        elif request.command == "HEAD":
            reply(request, 404)
        elif request.command == "POST":
            reply(request, 202, Location=upload_to)
        else:
            reply(request, 201)

    return answer


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelPack, Path]:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    blob = Blob.of(b"weights")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return pack("model", [PackedFile("model.safetensors", blob)], {}, {}), file


def push(host: Host, made: tuple[ModelPack, Path], tmp_path: Path) -> None:
    auths = {"auths": {host.name: {"auth": LOGIN}}}
    (tmp_path / "config.json").write_text(json.dumps(auths))
    OciRepository(f"{host.name}/model", insecure=True).push(made[0], lambda _: made[1], "v1")


@pytest.mark.parametrize("kind", ["token", "basic"])
@pytest.mark.parametrize("open_to_all", [True, False])
def test_an_upload_elsewhere_gets_no_login(
    kind: str, open_to_all: bool, made: tuple[ModelPack, Path], tmp_path: Path
) -> None:
    own, other = Host(), Host()
    own.answer = registry(own, f"http://{other.name}/upload?x=1", kind)
    refusal = f'Bearer realm="http://{other.name}/token",service="s"'
    other.answer = lambda request: (
        reply(request, 201) if open_to_all else reply(request, 401, WWW_Authenticate=refusal)
    )
    with running(own, other):
        if open_to_all:
            push(own, made, tmp_path)
        else:
            with pytest.raises(RegistryError):
                push(own, made, tmp_path)
    assert {path for _, path, _ in other.asked} == {
        f"/upload?x=1&digest={blob.digest.replace(':', '%3A')}"
        for blob in (made[0].files[0].blob, Blob.of(made[0].config))[: 2 if open_to_all else 1]
    }
    assert other.credentials == {None}
    assert own.credentials & {f"Bearer {TOKEN}", f"Basic {LOGIN}"}


@pytest.mark.parametrize("kind", ["token", "basic"])
@pytest.mark.parametrize("place", ["/upload", "http://{own}/upload"])
def test_an_upload_to_the_registry_itself_gets_it(
    kind: str, place: str, made: tuple[ModelPack, Path], tmp_path: Path
) -> None:
    own = Host()
    own.answer = registry(own, place.format(own=own.name), kind)
    with running(own):
        push(own, made, tmp_path)
    sent = [each for each in own.asked if each[0] == "PUT" and each[1].startswith("/upload")]
    assert {each[2] for each in sent} == {
        f"Bearer {TOKEN}" if kind == "token" else f"Basic {LOGIN}"
    }


def test_a_login_is_not_sent_without_encryption() -> None:
    """A registry of https names where to get a token: at http anyone could read the login."""
    other = Host()
    other.answer = lambda request: reply(request, 200, json.dumps({"token": TOKEN}).encode())
    client = OrasClient("registry.example.com", insecure=False, auth="token")
    client.auth._basic_auth = LOGIN
    with running(other), pytest.raises(requests.RequestException):
        client.auth.request_token(
            parse_auth_header(f'Bearer realm="http://{other.name}/token",service="s"')
        )
    assert other.asked == []

"""Answers of an MLflow server that nobody can trust."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from http_stand_in import HttpStandIn, SilentHandler

from artifacts import mlflow_session
from artifacts.registry import Registry
from prepare.errors import RegistryError

VERSION = {
    "name": "m",
    "version": "1",
    "creation_timestamp": 1,
    "last_updated_timestamp": 1,
    "source": "http://x/weights",
    "run_id": "r1",
    "status": "READY",
}
MODEL = {"name": "m", "creation_timestamp": 1, "last_updated_timestamp": 1}


class Handler(SilentHandler):
    kind: ClassVar[str] = ""
    elsewhere: ClassVar[str] = ""

    def give(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, found: dict[str, Any]) -> None:
        self.give(json.dumps(found).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        if "registered-models/get" in self.path:
            if self.kind == "host":
                self.give(b"Invalid Host header - possible DNS rebinding attack detected", 403)
            elif self.kind == "bomb":
                self.give(gzip.compress(b" " * 2**24), Content_Encoding="gzip")
            elif self.kind == "long":
                self.give(b" " * (mlflow_session.MAX_ANSWER_BYTES + 1))
            elif self.kind == "later":
                self.give(b"{}", 429, Retry_After="100000")
            elif self.kind == "drips":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
                while True:
                    self.wfile.write(b"a")
                    time.sleep(0.05)
            elif self.kind.startswith("new"):
                self.give(b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}', 404)
            else:
                self.answer({"registered_model": MODEL})
        elif "model-versions/search" in self.path:
            version = {**VERSION, "version": "abc" if self.kind == "number" else "1"}
            more = {"next_page_token": "again"} if self.kind == "pages" else {}
            self.answer({"model_versions": [version], **more})
        elif "model-versions/get" in self.path:
            self.answer({"model_version": VERSION})
        elif "runs/get" in self.path:
            place = f"{self.elsewhere}/api/2.0/mlflow-artifacts/artifacts/x"
            info = {"run_id": "r1", "experiment_id": "1", "status": "FINISHED"}
            self.answer({"run": {"info": {**info, "artifact_uri": place}, "data": {}}})
        else:
            self.give(b"{}", 404)

    def do_write(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.kind.endswith("readonly"):
            self.give(b"Permission denied", 403)
        else:
            self.give(b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}', 400)

    do_POST = do_DELETE = do_PATCH = do_write


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "the-secret-token")
    monkeypatch.setattr(mlflow_session, "REQUEST_S", 5.0)
    monkeypatch.setattr(mlflow_session, "MAX_ANSWER_BYTES", 2**20)


def refusal(kind: str) -> RegistryError:
    handler = type("Bound", (Handler,), {"kind": kind})
    with HttpStandIn(handler) as server:
        began = time.monotonic()
        with pytest.raises(RegistryError) as caught:
            Registry(server.url).model("m")
        assert time.monotonic() - began < 60
        assert server.url in caught.value.where
    return caught.value


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bomb", "compressed"),
        ("long", "longer than"),
        ("later", "429"),
        ("drips", "no end"),
        ("pages", "no end"),
        ("number", "'abc'"),
    ],
)
def test_an_answer_is_bounded(kind: str, words: str) -> None:
    assert words in refusal(kind).message


def test_a_server_that_is_known_by_other_names_says_how() -> None:
    assert "--allowed-hosts" in refusal("host").hint


@pytest.mark.parametrize("kind", ["", "new"])
def test_a_login_that_may_only_read_is_found_before_the_run(kind: str) -> None:
    for rights in ("", "readonly"):
        handler = type("Bound", (Handler,), {"kind": f"{kind}{rights}"})
        with HttpStandIn(handler) as server:
            if not rights:
                Registry(server.url).check("m")
                continue
            with pytest.raises(RegistryError) as caught:
                Registry(server.url).check("m")
            assert "403" in caught.value.message


def test_the_login_goes_to_the_registry_and_to_named_hosts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    class Stranger(SilentHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b'{"files": []}')

    with HttpStandIn(Stranger) as stranger:
        handler = type("Bound", (Handler,), {"elsewhere": stranger.url})
        with HttpStandIn(handler) as server:
            registry = Registry(server.url)
            (version,) = registry.versions("m")
            with pytest.raises(RegistryError) as caught:
                registry.fetch(version, tmp_path)
            assert seen == []
            host = stranger.url.removeprefix("http://")
            assert host in caught.value.where
            assert mlflow_session.HOSTS_VARIABLE in caught.value.hint
            monkeypatch.setenv(mlflow_session.HOSTS_VARIABLE, f"other, {host}")
            with pytest.raises(RegistryError):
                Registry(server.url).fetch(version, tmp_path)
    assert "Bearer the-secret-token" in seen

"""A small OCI registry: blobs, manifests and tags of any repository, with a login if asked for."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from http_stand_in import HttpStandIn, SilentHandler

LOGIN = base64.b64encode(b"ann:secret").decode()


@dataclass
class Content:
    """What it has and was asked.

    Attributes:
        auth: none, basic or token.
        elsewhere: where it wants uploads sent, if not to itself.
        token: the answer to a login.
        drips: a manifest comes byte by byte.
        drips_headers: the headers of an answer do.
    """

    auth: str = "none"
    elsewhere: str = ""
    token: bytes = b'{"token": "t"}'
    drips: bool = False
    drips_headers: bool = False
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)


class OciStandIn(HttpStandIn):
    def __init__(self, **how: Any) -> None:
        self.content = content = Content(**how)

        class Handler(_Handler):
            kept = content

        super().__init__(Handler)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")


class _Handler(SilentHandler):
    kept: ClassVar[Content]

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self) -> None:
        kept, url = self.kept, urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        told = self.headers.get("Authorization", "")
        kept.asked.append((self.command, url.path, told))
        if kept.drips_headers:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
            with suppress(OSError):
                while True:
                    self.wfile.write(b"a")
                    time.sleep(0.02)
        if url.path == "/token":
            if told != f"Basic {LOGIN}":
                return self.answer(401)
            return self.answer(200, kept.token)
        wanted = {"none": "", "basic": f"Basic {LOGIN}", "token": "Bearer t"}[kept.auth]
        if told != wanted:
            host = self.headers["Host"]
            challenge = f'Bearer realm="http://{host}/token",service="s"'
            how = "Basic realm=x" if kept.auth == "basic" else challenge
            return self.answer(401, WWW_Authenticate=how)
        if url.path == "/v2/":
            return self.answer(200)
        found = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(.+)", url.path)
        if found is None:
            return self.answer(404)
        _, kind, name = found.groups()
        if kind == "manifests":
            if self.command == "PUT":
                kept.manifests[name] = body
                kept.manifests[f"sha256:{hashlib.sha256(body).hexdigest()}"] = body
                return self.answer(201)
            known = name in kept.manifests
            if kept.drips:
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    while True:
                        self.wfile.write(b" ")
                        time.sleep(0.02)
            return self.answer(200 if known else 404, kept.manifests.get(name, b""))
        if self.command == "POST":
            number = str(len(kept.uploads))
            kept.uploads[number] = b""
            base = kept.elsewhere or ""
            return self.answer(202, Location=f"{base}/v2/x/blobs/uploads/{number}?_state=x")
        if self.command == "PATCH":
            kept.uploads[name.removeprefix("uploads/")] += body
            return self.answer(202, Location=self.path)
        if self.command == "PUT":
            assert parse_qs(url.query)["_state"] == ["x"]
            content = kept.uploads[name.removeprefix("uploads/")]
            (digest,) = parse_qs(url.query)["digest"]
            assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
            kept.blobs[digest] = content
            return self.answer(201)
        known = name in kept.blobs
        return self.answer(200 if known else 404, kept.blobs.get(name, b""))

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = handle_any

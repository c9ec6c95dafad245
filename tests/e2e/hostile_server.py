"""A hostile endpoint, whose answers are named by the first part of the path."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """What is sent as an answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    is_endless: bool = False  # the body again and again, until the reader goes


@dataclass
class HostileServer:
    """Where it listens, and what it was asked."""

    url: str
    asked: dict[str, list[bytes]] = field(default_factory=dict)  # by name, bodies of requests


@contextmanager
def serve(answers: Mapping[str, Answer]) -> Iterator[HostileServer]:
    """Answer GET and POST until the end of the block; of an unknown name nothing is said."""
    found = HostileServer("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.split("/")[1]
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            found.asked.setdefault(name, []).append(body)
            answer = answers.get(name, Answer())
            self.send_response(answer.status)
            for header, value in answer.headers.items():
                self.send_header(header, value)
            self.end_headers()
            try:
                self.wfile.write(answer.body)
                while answer.is_endless:
                    self.wfile.write(answer.body)
            except OSError:
                pass  # the reader has gone, as it should

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()

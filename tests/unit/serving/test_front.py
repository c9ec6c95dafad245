from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from free_port import free_port

from pipeline.serving.front import HEAD_SECONDS, LINGER_SECONDS, open_front, reserve
from prepare.errors import UsageError

KEY = "sk-of-the-clients"
PATHS = [
    *("/", "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1", "/v2/embed"),
    *("/invocations", "/tokenize", "/detokenize", "/pooling", "/score", "/rerank", "/classify"),
    *("/inference/v1/generate", "/metrics", "/version", "/ping", "/load", "/docs", "/openapi.json"),
    *("/server_info", "/scale_elastic_ep", "/is_sleeping", "/sleep", "/reset_prefix_cache"),
    *("/health/", "/health?x", "//health", "/HEALTH", "/%68ealth", "/health/../invocations"),
    *("/health;x", "/health%00", "/./health", "/health%2f..%2finvocations", "/health#x"),
    *("http://h/health", "http://h/invocations", "*", "/generate", "/v1/../invocations"),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, bytes]]
    shown: list[dict[str, str]]

    def handle_any(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, body))
        self.shown.append({name.lower(): value for name, value in self.headers.items()})
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"one", b"two"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                time.sleep(0.5)
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 1000)
                    time.sleep(0.01)
            except OSError:
                self.asked.append(("left", self.path, b""))
            return
        answer = json.dumps({"path": self.path, "length": len(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer if self.command != "HEAD" else b"")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = handle_any

    def log_message(self, *_: Any) -> None: ...


class SocketServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()[0], ("unix", 0)


class Front:
    def __init__(self, port: int, asked: list[Any], shown: list[dict[str, str]]) -> None:
        self.port, self.asked, self.shown = port, asked, shown
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

    def raw(self, sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(sent)
            found = b""
            while chunk := connection.recv(1 << 16):
                found += chunk
        return found

    def request(self, path: str, method: str = "GET", *headers: str, body: str = "") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join([*lines, "", ""]) + body).encode()


@contextmanager
def front_with(folder: Path, key: str) -> Iterator[Front]:
    asked: list[Any] = []
    shown: list[dict[str, str]] = []
    handler = type("Bound", (Handler,), {"asked": asked, "shown": shown})
    server = SocketServer(str(folder / "s"), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    port = free_port()
    try:
        with reserve("127.0.0.1", port) as bound, open_front(bound, folder / "s", key, "/health"):
            found = Front(port, asked, shown)
            yield found
            found.client.close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with front_with(tmp_path, KEY) as found:
        yield found


SHOWN = f"Authorization: Bearer {KEY}"


@pytest.mark.parametrize("path", PATHS)
def test_every_path_but_health_needs_the_key(front: Front, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
        answer = front.raw(front.request(path, method, body="{}" if method == "POST" else ""))
        assert answer.startswith(b"HTTP/1.1 401 "), method
    assert front.asked == []
    front.raw(front.request(path, "POST", SHOWN, body="{}"))
    assert [each[:2] for each in front.asked] == [
        ("POST", path.replace("//health", "/health"))
    ]  # http.server's own


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer"],
        ["Authorization: Bearer x"],
        ["Authorization: "],
        [f"Authorization: Basic {KEY}"],
        [f"Authorization: {KEY}"],
        [f"Authorization: Bearer {KEY}x"],
        [f"Authorization: Bearer {KEY[:-1]}"],
        [f"Authorization: Bearer {KEY.upper()}"],
        [f"Authorization: Bearer {KEY} x"],
        [f"Authorization: Bearer {KEY}, Bearer x"],
        [SHOWN, "Authorization: Bearer x"],
        [SHOWN, SHOWN],
        [f"X-Authorization: Bearer {KEY}"],
        [f"Proxy-Authorization: Bearer {KEY}"],
        [f"Cookie: Authorization=Bearer {KEY}"],
        [f"X: y\rAuthorization: Bearer {KEY}"],
        [f"X: y\nAuthorization: Bearer {KEY}"],
        [f"X: y\r\n Authorization: Bearer {KEY}"],
        [f" Authorization: Bearer {KEY}"],
        [f"Authorization : Bearer {KEY}"],
        [f"Authorization\0: Bearer {KEY}"],
    ],
)
def test_what_is_no_key(front: Front, headers: list[str]) -> None:
    answer = front.raw(front.request("/v1/models", "GET", *headers))
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 "))
    assert front.asked == []


@pytest.mark.parametrize("shown", [SHOWN, f"authorization: bearer  {KEY} ", SHOWN.swapcase()[:15]])
def test_the_key_is_not_handed_on(front: Front, shown: str) -> None:
    if KEY not in shown:
        shown += f"BEARER {KEY}"
    assert b" 200 " in front.raw(front.request("/v1/models", "GET", shown, "X-Own: y"))
    (headers,) = front.shown
    assert headers == {"host": "h", "x-own": "y", "connection": "close"}


@pytest.mark.parametrize("second", [SHOWN, "X: y"])
def test_a_connection_is_for_one_request(front: Front, second: str) -> None:
    """Those who share it, such as other clients of a proxy, have to show the key."""
    for first in (SHOWN, f"{SHOWN}\r\nConnection: keep-alive", f"{SHOWN}\r\nUpgrade: websocket"):
        sent = front.request("/first", "POST", first, body="{}")
        assert b"/first" in front.raw(sent + front.request("/second", "GET", second))
    assert {path for _, path, _ in front.asked} == {"/first"}


@pytest.mark.parametrize(
    "more", ["", "Content-Length: 60", "Transfer-Encoding: chunked", "Expect: 100-continue"]
)
def test_nothing_of_a_client_without_the_key_reaches_the_server(front: Front, more: str) -> None:
    hidden = front.request("/hidden", "POST", body="{}")
    front.raw(front.request("/health", "GET", *([more] if more else [])) + hidden)
    assert front.asked == [("GET", "/health", b"")]
    assert front.shown == [{"host": "localhost", "connection": "close"}]


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"get / HTTP/1.1\r\n\r\n",
             b"GET  / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nx\r\n\r\n", b"\x16\x03\x01\r\n\r\n"]
)  # fmt: skip
def test_what_is_no_request(front: Front, sent: bytes) -> None:
    assert front.raw(sent).startswith(b"HTTP/1.1 400 ")
    assert front.asked == []


def test_a_head_without_an_end_is_refused(front: Front) -> None:
    started = time.monotonic()
    assert b" 400 " in front.raw(b"GET / HTTP/1.1\r\nx: " + b"y" * (1 << 18))
    assert time.monotonic() - started < HEAD_SECONDS


def test_an_answer_streams(front: Front) -> None:
    shown = {"Authorization": f"Bearer {KEY}"}
    with front.client.stream("POST", "/stream", json={}, headers=shown) as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"one"
        before = time.monotonic()
        assert b"".join(parts) == b"two"
        assert time.monotonic() - before > 0.3


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_large_body_arrives_whole(front: Front, is_chunked: bool) -> None:
    body = bytes(range(256)) * 20_000
    content = (body[at : at + 99_999] for at in range(0, len(body), 99_999))
    shown = {"Authorization": f"Bearer {KEY}"}
    answer = front.client.post("/v1/x", content=content if is_chunked else body, headers=shown)
    assert answer.json()["length"] == len(body)
    assert front.asked[0][2] == body


def test_a_client_that_is_refused_sees_why_whatever_it_sends(front: Front) -> None:
    started = time.monotonic()
    assert front.client.post("/invocations", content=b"x" * (8 << 20)).status_code == 401
    assert time.monotonic() - started < LINGER_SECONDS + 5


def test_the_server_learns_that_a_client_left(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(front.request("/endless", "GET", SHOWN))
        assert connection.recv(1000)
    deadline = time.monotonic() + 10
    while ("left", "/endless", b"") not in front.asked:
        assert time.monotonic() < deadline
        time.sleep(0.05)


FLOODED = """
import resource, socket, sys, threading
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from pipeline.serving.front import open_front, reserve
with socket.socket(socket.AF_UNIX) as server, reserve("127.0.0.1", 0) as bound:
    server.bind(sys.argv[1])
    server.listen()
    def answer():
        while True:
            client = server.accept()[0]
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")
            client.close()
    threading.Thread(target=answer, daemon=True).start()
    with open_front(bound, Path(sys.argv[1]), "key", "/health"):
        print(bound.getsockname()[1], flush=True)
        sys.stdin.read()
"""


def test_idle_connections_keep_nobody_out_and_fill_no_log(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FLOODED, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        idle = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(700)]
        for each in idle:
            with suppress(OSError):
                each.sendall(b"G")
        asked = b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer key\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(asked)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        for each in idle:
            each.close()
        _, told = process.communicate("", timeout=20)
    assert told == ""


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    port = free_port()
    with reserve("127.0.0.1", port) as bound, open_front(bound, tmp_path / "no", "", "/health"):
        assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 502


def test_a_port_that_another_has_reserved_is_refused_at_once() -> None:
    """Before either listens: the second would otherwise fail after its server's start."""
    with reserve("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(UsageError) as caught, reserve("127.0.0.1", port):
            pass
    assert caught.value.exit_code == 2
    assert caught.value.hint == "choose another --port"


def test_a_port_can_be_had_again_after_connections(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(2):
        with reserve("127.0.0.1", port) as bound, open_front(bound, tmp_path / "no", "", "/h"):
            assert httpx.get(f"http://127.0.0.1:{port}/h", trust_env=False).status_code == 502


def test_a_port_opens_with_the_front_and_closes_after(tmp_path: Path) -> None:
    port = free_port()
    with reserve("127.0.0.1", port) as bound:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port))
        with open_front(bound, tmp_path / "no", "", "/health"):
            socket.create_connection(("127.0.0.1", port)).close()
            with pytest.raises(UsageError, match="cannot be opened"), reserve("127.0.0.1", port):
                pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))

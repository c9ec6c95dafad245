from __future__ import annotations

import gzip
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from eval_gates import ask
from pipeline.serving.openai_endpoint import OpenAIEndpoint, send_request
from pipeline.stages import sanity
from prepare.errors import ServingError, StageError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Answering = Callable[[socket.socket], None]


@contextmanager
def server(answering: Answering) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        answering(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def with_body(body: bytes, head: bytes = b"") -> Answering:
    size = b"Content-Length: %d\r\n\r\n" % len(body)
    return lambda connection: connection.sendall(HEAD + head + size + body)


def dripping(first: bytes, drop: bytes) -> Answering:
    def drip(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(drop)
            time.sleep(0.05)

    return drip


@pytest.mark.parametrize(
    "answering",
    [
        dripping(b"", b""),
        dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["silence", "endless headers", "endless body"],
)
def test_an_exchange_without_an_end_ends(answering: Answering) -> None:
    started = time.monotonic()
    with server(answering) as url, pytest.raises(httpx.ReadTimeout):
        send_request("GET", url, timeout_s=0.7)
    assert time.monotonic() - started < 5


def test_a_reset_connection_has_a_reason() -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with server(reset) as url, pytest.raises(httpx.NetworkError, match="broke"):
        send_request("GET", url, timeout_s=10)


def test_a_large_answer_is_refused() -> None:
    with server(with_body(b" " * 100_001)) as url, pytest.raises(httpx.ReadError, match="larger"):
        send_request("GET", url, timeout_s=10, max_bytes=100_000)


def test_a_bomb_of_gzip_is_refused() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    with (
        server(with_body(bomb, b"Content-Encoding: gzip\r\n")) as url,
        pytest.raises(httpx.DecodingError, match="compressed"),
    ):
        send_request("GET", url, timeout_s=10)


ODD = [
    b"", b"[]", b"null", b'{"data": {}}', b'{"data": [1]}', b"[" * 9000,
    b'{"data": [{"id": "a"}, {"id": "b"}]}', b'{"data": "abc"}', b"\xff", b"9" * 9000,
    b'{"data": [{"id": "\\ud800"}]}',
]  # fmt: skip


@pytest.mark.parametrize("body", ODD)
def test_an_endpoint_that_names_no_model_is_a_serving_error(body: bytes) -> None:
    with server(with_body(body)) as url, pytest.raises(ServingError):
        OpenAIEndpoint.from_url(url, None).resolve_model()


@pytest.mark.parametrize("body", [*ODD, b'{"choices": []}', b'{"choices": [{"text": null}]}'])
def test_a_server_that_answers_oddly_is_a_stage_error_or_silent(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "TRIES", 1)
    with server(with_body(body)) as url:
        client = ask.Client(url, "m", sanity.WRITTEN)
        with suppress(StageError):
            sanity.examine(client, [])
        for by_chat in (True, False):
            with suppress(StageError):
                sanity.write(client, by_chat=by_chat)

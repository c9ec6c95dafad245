"""A registry that keeps its client waiting: there is an end to each answer, and to the wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import requests

from artifacts.registry import oras_client
from artifacts.registry.oras_client import blob_blocks, mount_adapter

SECONDS = 5.0  # until it must have given up; the limits here are shorter
DRIP_SECONDS = 0.05


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request and leaves the rest to `answer`; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v2/"


def drip(connection: socket.socket, letter: bytes) -> None:
    for _ in range(int(60 / DRIP_SECONDS)):
        connection.sendall(letter)
        time.sleep(DRIP_SECONDS)


def dripping_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Never-Ends: ")
    drip(connection, b"x")


def dripping_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    drip(connection, b"x")


def busy_for_days(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 999999\r\nConnection: close\r\n")
    connection.sendall(b"Content-Length: 0\r\n\r\n")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[requests.Session]:
    for limit in ("BEGIN_SECONDS", "ANSWER_SECONDS", "BLOB_SECONDS"):
        monkeypatch.setattr(oras_client, limit, 0.5)
    monkeypatch.setattr(oras_client, "RETRIES", 1)
    with requests.Session() as session:
        session.trust_env = False
        mount_adapter(session)
        yield session


@pytest.mark.parametrize("answer", [dripping_headers, dripping_body], ids=["headers", "body"])
def test_an_answer_that_drips(
    session: requests.Session, answer: Callable[[socket.socket], None]
) -> None:
    started = time.monotonic()
    with answering(answer) as url, pytest.raises(requests.Timeout, match="does not"):
        session.get(url)
    assert time.monotonic() - started < SECONDS


def test_a_blob_that_drips(session: requests.Session) -> None:
    started = time.monotonic()
    with (
        answering(dripping_body) as url,
        session.get(url, stream=True) as response,
        pytest.raises(requests.Timeout, match="does not come to an end"),
    ):
        list(blob_blocks(response, 1000))
    assert time.monotonic() - started < SECONDS


def test_who_says_to_come_back_in_days_is_asked_sooner(session: requests.Session) -> None:
    started = time.monotonic()
    with answering(busy_for_days) as url:
        assert session.get(url).status_code == 503
    assert time.monotonic() - started < SECONDS


def test_a_blob_that_comes(session: requests.Session) -> None:
    def whole(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nblob")

    with answering(whole) as url, session.get(url, stream=True) as response:
        assert b"".join(blob_blocks(response, 4)) == b"blob"

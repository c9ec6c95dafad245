"""Public port in front of a model server on a private socket.

Engines ask for their key on some paths only (vLLM: those below /v1, /v2 and /inference). Here every
request except health needs it. A proxy may share connections between clients, so one is for one
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from prepare.errors import UsageError, raise_as

HOST = "127.0.0.1"
MAX_HEAD_BYTES = 1 << 16
HEAD_SECONDS = 30.0
LINGER_SECONDS = 2.0
_CHUNK = 1 << 16  # bytes
# Connections that have not shown a request, each with one descriptor; the oldest gives way.
MAX_WAITING = 256
MIN_CONNECTIONS = 8
_RESERVED = 160  # descriptors of this process, and of what asyncio accepts in one turn
# Loop rounds until an accepted connection has its task, and one is closed.
_ROUNDS = 8
_REQUEST = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
# About this connection, or for the front alone.
_NOT_FORWARDED = {b"authorization", b"connection", b"keep-alive", b"proxy-connection", b"upgrade"}
_ANSWERS = {
    400: (b"Bad Request", b'{"error": "Bad Request"}'),
    401: (b"Unauthorized", b'{"error": "Unauthorized"}'),
    503: (b"Service Unavailable", b'{"error": "Too many requests"}'),
    502: (b"Bad Gateway", b'{"error": "The model server does not answer"}'),
}


class _RefusedError(Exception):
    """The request is refused with this status."""


def check_host(text: str, key: str, key_variable: str) -> str:
    """Return the listening address for a user's input."""
    where = f"--host {text}"
    try:
        address = ip_address(HOST if text == "localhost" else text)
        with socket.socket(_family(address)) as probe:
            probe.bind((str(address), 0))
    except (ValueError, OSError) as error:
        raise UsageError(
            f"a server cannot listen there: {error}",
            where=where,
            hint="use an IP address of this machine, or 0.0.0.0 for all of them",
        ) from error
    if not address.is_loopback and not key.strip():
        raise UsageError(
            "other machines can reach this address, so it needs an API key",
            where=where,
            hint=f"set {key_variable} to a key for its clients, or omit --host and put your own "
            "proxy in front",
        )
    return str(address)


def reachable_address(host: str) -> str:
    """Return this process's address of `host`."""
    address = ip_address(host)
    if not address.is_unspecified:
        return host
    return HOST if address.version == 4 else "::1"


def format_for_url(host: str) -> str:
    """Format the address for a URL."""
    return f"[{host}]" if ip_address(host).version == 6 else host


def _family(address: IPv4Address | IPv6Address) -> int:
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET


@contextmanager
def reserve(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket bound to the port; UsageError if it is taken."""
    with socket.socket(_family(ip_address(host))) as bound:
        with _refuse_taken(host, port):
            try:  # alone: with SO_REUSEADDR, two could bind, and one would fail when it listens
                bound.bind((host, port))
            except OSError:  # taken, or only by closed connections
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind((host, port))
        yield bound


@contextmanager
def open_front(bound: socket.socket, server: Path, key: str, health: str) -> Iterator[None]:
    """Answer requests on the socket until the block ends.

    `key` is the clients' bearer token, or "". `health` is a path without a key.
    """
    front = _Front(server, key.encode(), health.encode())
    with _refuse_taken(*bound.getsockname()[:2]):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of its connections, for later
        bound.listen(1024)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        end = asyncio.Event()
        loop.set_exception_handler(_handle)
        thread = threading.Thread(
            target=runner.run, args=(front.serve(bound.dup(), end),), name="front", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join()


def _refuse_taken(host: str, port: int) -> AbstractContextManager[None]:
    message = f"port {port} cannot be opened"
    hint = "choose another --port"
    return raise_as(UsageError, message, f"{host}:{port}", hint)


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report a defect; clients could fill the log with the connections that the system refuses."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


class _Front:
    def __init__(self, server: Path, key: bytes, health: bytes) -> None:
        self._server = str(server)
        self._key = key
        self._health = health
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_waiting = max(MIN_CONNECTIONS, min(MAX_WAITING, descriptors // 8))
        left = descriptors - self._most_waiting - _RESERVED
        self._most_forwarded = max(MIN_CONNECTIONS, left // 2)  # a client's and a server's each
        self._waiting: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._forwarded = 0
        # asyncio itself refers weakly to tasks: one that waits could be collected.
        self._running: set[asyncio.Task[None] | None] = set()

    async def serve(self, listening: socket.socket, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self.answer, sock=listening, limit=MAX_HEAD_BYTES)
        async with server:
            await end.wait()
            # A closed server would drop, and not close, accepted connections.
            asyncio.get_running_loop().remove_reader(listening.fileno())
            await _let_run(_ROUNDS)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _let_run(_ROUNDS)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running.add(task := asyncio.current_task())
        assert task is not None
        if len(self._waiting) >= self._most_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        self._waiting[task] = None
        try:
            await self._answer(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except _RefusedError as refused:
            await _refuse(reader, writer, refused.args[0])
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone or too slow
        finally:
            writer.close()
            self._running.discard(task)
            self._waiting.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
        except asyncio.LimitOverrunError:
            raise _RefusedError(400) from None
        line, *fields = head[:-4].split(b"\r\n")
        asked = _REQUEST.fullmatch(line)
        read = [_FIELD.fullmatch(field) for field in fields]
        if asked is None or None in read:
            raise _RefusedError(400)
        headers = [(header[1].lower(), header[2].strip()) for header in read if header is not None]
        keys = [value for name, value in headers if name == b"authorization"]
        has_key = not self._key or (len(keys) == 1 and self._is_key(keys[0]))
        if not has_key and (asked[1], asked[2]) != (b"GET", self._health):
            raise _RefusedError(401)
        if self._forwarded >= self._most_forwarded:
            raise _RefusedError(503)
        self._forwarded += 1
        self._waiting.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        try:
            await self._forward(reader, writer, line, headers, has_key=has_key)
        finally:
            self._forwarded -= 1

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        has_key: bool,
    ) -> None:
        """Send the request to the server, and its answer back."""
        try:
            answers, requests = await asyncio.open_unix_connection(self._server)
        except OSError:
            raise _RefusedError(502) from None
        try:
            if not has_key:
                line = b"GET " + self._health + b" HTTP/1.1"
                headers = [(b"host", b"localhost")]
            sent = [
                line,
                *(b"%s: %s" % field for field in headers if field[0] not in _NOT_FORWARDED),
            ]
            requests.write(b"\r\n".join([*sent, b"connection: close", b"", b""]))
            await _pass_on(reader if has_key else None, requests, answers, writer)
        finally:
            requests.close()

    def _is_key(self, value: bytes) -> bool:
        scheme, _, shown = value.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._key)


async def _pass_on(
    body: asyncio.StreamReader | None,
    requests: asyncio.StreamWriter,
    answers: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Forward until either end closes."""
    there = asyncio.create_task(_copy(body, requests)) if body is not None else None
    back = asyncio.create_task(_copy(answers, writer))
    tasks = [pump for pump in (there, back) if pump is not None]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not back.done() and requests.can_write_eof():
            with contextlib.suppress(OSError):
                requests.write_eof()  # the client's end, by which the server ends its work
            await back
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()


async def _let_run(rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int) -> None:
    words, body = _ANSWERS[status]
    writer.write(
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%s" % (status, words, len(body), body)
    )
    # Closing with unread input resets the connection, and the client would not see the answer.
    with contextlib.suppress(OSError, TimeoutError):
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(_CHUNK):
                pass

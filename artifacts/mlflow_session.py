"""Requests of MLflow's client, bounded: a server's answers are untrusted."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from prepare.errors import RegistryError
from prepare.untrusted import MEBIBYTE

HOSTS_VARIABLE = "PREPARE_ARTIFACT_HOSTS"
"""Hosts, separated by commas, that get the registry's login too."""
REQUEST_S = 120.0  # of one request, its retries included
MAX_ANSWER_BYTES = 64 * MEBIBYTE
MIN_RATE = 2**16  # bytes a second of what is sent
MIN_BYTES = 2**16
MAX_BLOCK_S = 60.0  # a download of fewer bytes in this time has no end
_BLOCK_BYTES = 2**16
Value = TypeVar("Value")
_login_hosts: set[str] = set()


def bound_requests(address: str) -> None:
    """Bound all of MLflow's requests; its login goes to this address, and to the listed hosts."""
    from mlflow.utils import request_utils

    named = os.environ.get(HOSTS_VARIABLE, "").split(",")
    _login_hosts.update({_host_of(address), *(host.strip().lower() for host in named)})
    if hasattr(request_utils.TCPKeepAliveHTTPAdapter, "is_bounded"):
        return

    class BoundedAdapter(request_utils.TCPKeepAliveHTTPAdapter):
        """Reads at most a number of bytes in a number of seconds, and nothing compressed."""

        is_bounded = True

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            is_streamed = options.get("stream", False)
            options["stream"] = True
            host = _host_of(request.url)
            if "Authorization" in request.headers and host not in _login_hosts:
                raise ConnectionError(
                    f"the login is not sent to {host[:100]}, where an answer of the registry "
                    f"points; if that is right, name it in {HOSTS_VARIABLE}"
                )
            request.headers["Accept-Encoding"] = "identity"
            size = int(request.headers.get("Content-Length") or 0)
            end = time.monotonic() + REQUEST_S + size / MIN_RATE

            def exchange() -> Any:
                answer = super(BoundedAdapter, self).send(request, *arguments, **options)
                try:
                    encoding = answer.headers.get("Content-Encoding", "identity")
                    if encoding != "identity":
                        raise ConnectionError(f"its answer is compressed ({encoding[:20]})")
                    if not is_streamed:
                        answer._content = _read(answer.raw)
                        answer._content_consumed = True
                except BaseException:
                    answer.raw.close()  # what was not read is still in the connection
                    raise
                return answer

            return run_watched(exchange, lambda: time.monotonic() > end)

    request_utils.TCPKeepAliveHTTPAdapter = BoundedAdapter  # type: ignore[misc]


def refuse_other_host(place: str) -> None:
    """Raise RegistryError if a run's artifacts are at another host than the login is for."""
    host = (
        _host_of(place) if urlsplit(place).scheme in ("http", "https", "mlflow-artifacts") else ""
    )
    if host and host not in _login_hosts:
        raise RegistryError(
            "the version's run keeps its files at another host, which would get the login",
            where=place[:300],
            hint=f"if that host is right, name it: {HOSTS_VARIABLE}={host[:100]}",
        )


def download(call: Callable[[], Value], folder: Path) -> Value:
    """Do a call that fills the folder, unless it has become too slow."""
    began = time.monotonic()
    before = 0

    def is_stuck() -> bool:
        nonlocal began, before
        size = 0
        for file in folder.rglob("*"):
            with suppress(FileNotFoundError):  # MLflow renames its own
                size += file.lstat().st_size
        if size >= before + MIN_BYTES:
            began = time.monotonic()
            before = size
        return time.monotonic() - began > MAX_BLOCK_S

    return run_watched(call, is_stuck)


def run_watched(call: Callable[[], Value], is_stuck: Callable[[], bool]) -> Value:
    """Return the call's result; a stuck one is left to a thread that ends with the process."""
    done: queue.SimpleQueue[Callable[[], Value]] = queue.SimpleQueue()

    def call_and_tell() -> None:
        try:
            value = call()
        except BaseException as error:
            done.put(partial(_raise, error))
        else:
            done.put(lambda: value)

    threading.Thread(target=call_and_tell, name="registry", daemon=True).start()
    while True:
        try:
            give_result = done.get(timeout=0.5)
        except queue.Empty:
            if is_stuck():
                raise ConnectionError("its answer has no end") from None
            continue
        return give_result()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _read(raw: Any) -> bytes:
    content = bytearray()
    for block in raw.stream(_BLOCK_BYTES, decode_content=False):
        content += block
        if len(content) > MAX_ANSWER_BYTES:
            raise ConnectionError(f"its answer is longer than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(content)


def _host_of(address: str) -> str:
    return urlsplit(address).netloc.rpartition("@")[2].lower()

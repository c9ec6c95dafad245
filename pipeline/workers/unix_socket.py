"""Connects the asynchronous HTTP clients of a worker's libraries to a server's Unix socket.

lm-eval and vLLM's load generator use aiohttp's TCPConnector. The class is replaced before they are
imported, so every request of the worker goes to the socket, for any host in its URL.
"""

from __future__ import annotations

from typing import Any

# The settings of a TCPConnector that a connector of sockets has as well.
_SHARED = ("limit", "limit_per_host", "keepalive_timeout", "force_close")


def connect_through(path: str | None) -> None:
    """Send all requests of this process through the socket; None changes nothing."""
    if path is None:
        return
    import aiohttp
    import aiohttp.connector

    socket = path

    class UnixSocketConnector(aiohttp.UnixConnector):  # type: ignore[misc]
        """A connector that accepts a TCPConnector's settings."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(socket, **{n: settings[n] for n in _SHARED if n in settings})

    aiohttp.TCPConnector = UnixSocketConnector
    aiohttp.connector.TCPConnector = UnixSocketConnector

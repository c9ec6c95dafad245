"""A port for a server that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Return whether no process listens on the loopback's port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0

"""Address of prepare's model server, and the check that the listener is that server.

A run's server has a Unix socket in a private folder: no other user can query it, load it, read its
metrics, or replace it. Other programs reach it through `front.py`. A server with a port is on the
loopback, and the listening socket must belong to the server's process group.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ServingError
from pipeline.serving.listening_host import HOST

if TYPE_CHECKING:
    import httpx

MAX_SOCKET_PATH_BYTES = 107  # bytes; of Linux's sockaddr_un
_LISTENING = "0A"
# The loopback and all addresses, as in the kernel's tables: words in the machine's order.
_ADDRESSES = ("0100007F", "0" * 8, "0" * 32)


@dataclass(frozen=True)
class ServerAddress:
    """A Unix socket or a port."""

    socket: Path | None  # in a private folder; None for a port
    port: int = 0  # on the loopback; 0 for a socket

    @property
    def url(self) -> str:
        if self.socket is not None:
            return "http://localhost"
        return f"http://{HOST}:{self.port}"

    def client(self, timeout_seconds: float) -> httpx.Client:
        return open_client(self.url, self.socket, timeout_seconds)

    def is_owned_by(self, group: int) -> bool:
        if self.socket is None:
            inodes = _listening_inodes(self.port)
            return bool(inodes) and inodes <= _find_sockets(group)
        pid = _find_listener(self.socket)
        with contextlib.suppress(ProcessLookupError):
            return pid is not None and os.getpgid(pid) == group
        return False

    def is_free(self) -> bool:
        return self.socket is not None or port_is_free(self.port)

    def remove(self) -> None:
        if self.socket is not None:
            shutil.rmtree(self.socket.parent, ignore_errors=True)


def private_socket() -> ServerAddress:
    """Create a private folder for a socket; raise ServingError if that fails."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mkdtemp's folder is 0700
        try:
            folder = Path(tempfile.mkdtemp(prefix="prepare-", dir=parent))
        except OSError:
            continue
        path = folder / "server"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return ServerAddress(path)
        folder.rmdir()
    raise ServingError(
        "cannot create a folder for the model server's socket",
        where=tempfile.gettempdir(),
        hint="set TMPDIR to a writable folder with a short path",
    )


def open_client(url: str, through: Path | None, timeout_seconds: float) -> httpx.Client:
    """Return an HTTP client for the URL, through a Unix socket if given."""
    import httpx

    return httpx.Client(
        base_url=url,
        timeout=timeout_seconds,
        trust_env=False,
        transport=httpx.HTTPTransport(uds=str(through)) if through else None,
    )


def port_is_free(port: int) -> bool:
    """Return whether no process listens on the loopback's port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) != 0


def _find_listener(path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        size = struct.calcsize("3i")  # ucred: process, user, group
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                is_there = int(number, 16) == port and address in _ADDRESSES
                if is_there and fields[3] == _LISTENING:
                    found.add(fields[9])
    return found


def _find_sockets(group: int) -> set[str]:
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            if os.getpgid(int(process.name)) != group:
                continue
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found

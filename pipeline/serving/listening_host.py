"""A server's address: the loopback, or one for other machines."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from pipeline.core.errors import UsageError

HOST = "127.0.0.1"


def check_host(text: str, key: str, key_variable: str) -> str:
    """Return the listening address for a user's input."""
    where = f"--host {text}"
    try:
        address = ip_address(HOST if text == "localhost" else text)
        _try_to_bind(address)
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


def _try_to_bind(address: IPv4Address | IPv6Address) -> None:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        probe.bind((str(address), 0))

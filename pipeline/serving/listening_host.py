"""The address that a served model listens on: the loopback, or one that other machines reach."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from pipeline.core.errors import UsageError

HOST = "127.0.0.1"


def check_host(text: str, key: str, key_variable: str) -> str:
    """The address that the user named, as a server takes it.

    Args:
        text: an IP address, or `localhost`.
        key: that clients have to show; a blank one is none.
        key_variable: that names it, for the message.

    Raises:
        UsageError: it is no address of this machine; or others reach it, and there is no key.
    """
    where = f"--host {text}"
    try:
        address = ip_address(HOST if text == "localhost" else text)
        _try_to_bind(address)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"nothing can listen there: {error}",
            where=where,
            hint="give an IP address of this machine, or 0.0.0.0 for all that it has",
        ) from error
    if not address.is_loopback and not key.strip():
        raise UsageError(
            "whoever reaches this address could ask the model: it needs a key",
            where=where,
            hint=f"set {key_variable} to a key that its clients have to show, or leave --host out "
            "and let a proxy of your own answer to others",
        )
    return str(address)


def reachable_address(host: str) -> str:
    """The address under which we ourselves ask who listens on that one."""
    address = ip_address(host)
    if not address.is_unspecified:
        return host
    return HOST if address.version == 4 else "::1"


def format_for_url(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ip_address(host).version == 6 else host


def socket_table_addresses(host: str) -> frozenset[str] | None:
    """How the kernel's tables of sockets write who listens there; None: whatever the address.

    Whoever listens on all addresses does so on this one, too.
    """
    address = ip_address(host)
    if address.is_unspecified:
        return None
    # In hexadecimal, words of 32 bits in the machine's byte order, which is little-endian.
    return frozenset({_to_table_format(address), "0" * 8, "0" * 32})


def _to_table_format(address: IPv4Address | IPv6Address) -> str:
    packed = address.packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words)


def _try_to_bind(address: IPv4Address | IPv6Address) -> None:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        probe.bind((str(address), 0))

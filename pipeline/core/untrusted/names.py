"""Checks of untrusted names and paths before files are created from them."""

from __future__ import annotations

MAX_NAME_BYTES = 255


def is_plain_name(name: str) -> bool:
    """Return whether any Linux file system accepts the name and a terminal can print it."""
    return (
        name.isprintable()
        and "/" not in name
        and name not in ("", ".", "..")
        and len(name.encode()) <= MAX_NAME_BYTES
    )

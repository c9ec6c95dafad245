"""Paths in recipes, policies and settings, and what is there of them."""

from __future__ import annotations

import os
from pathlib import Path

from prepare.errors import UsageError

MAX_BYTES = 4095
MAX_NAME_BYTES = 255  # Linux's PATH_MAX without the final NUL, and NAME_MAX


def user_path(text: str | Path, where: str) -> Path:
    """Return the path with `~` expanded; UsageError if no file can have it."""
    try:
        written = os.fsencode(text)
        longest = max(map(len, written.split(b"/")))
        if b"\0" not in written and len(written) <= MAX_BYTES and longest <= MAX_NAME_BYTES:
            return Path(text).expanduser()
        problem = f"it has a NUL, or more than {MAX_BYTES:,} bytes, or {MAX_NAME_BYTES} in a name"
    except (UnicodeEncodeError, RuntimeError) as error:  # half a surrogate pair; no such user
        problem = str(error)
    raise UsageError(
        f"{str(text)[:80]!r} is not a path: {problem[:200]}",
        where=where,
        hint="correct the path; an absolute path starts with /, a path in your home folder with ~/",
    )


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(place for place in (path, *path.parents) if place.exists())

"""Paths in recipes, policies and settings."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.errors import UsageError

MAX_BYTES = 4095  # Linux's PATH_MAX without the final NUL


def user_path(text: str | Path, where: str) -> Path:
    """Return the path with `~` expanded."""
    problem = _find_problem(str(text))
    if not problem:
        try:
            return Path(text).expanduser()
        except RuntimeError:
            problem = "it contains the home folder of an unknown user"
    raise UsageError(
        f"{str(text)[:80]!r} is not a path: {problem}",
        where=where,
        hint="correct the path; an absolute path starts with /, a path in your home folder with ~/",
    )


def _find_problem(text: str) -> str:
    try:
        length = len(os.fsencode(text))
    except UnicodeEncodeError:
        return "it has an unpaired surrogate"
    if "\0" in text:
        return "it has a NUL"
    if length > MAX_BYTES:
        return f"it is longer than {MAX_BYTES:,} bytes"
    if any(len(os.fsencode(part)) > 255 for part in text.split("/")):
        return "a name in it is longer than 255 bytes"
    return ""

"""Paths that a user wrote: in a recipe, a policy, the settings, on the command line.

Standard library only: suites read them too.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.errors import UsageError

MAX_BYTES = 4095  # Linux's PATH_MAX without its last NUL; no call takes a longer one


def user_path(text: str | Path, where: str) -> Path:
    """The path that the text means, `~` expanded; nothing is looked up.

    Args:
        where: the file and key, option or variable that it stands in, for the message.

    Raises:
        UsageError: no file can have this path, or it names the home folder of an unknown user.
    """
    problem = _find_problem(str(text))
    if not problem:
        try:
            return Path(text).expanduser()
        except RuntimeError:
            problem = "it names the home folder of an unknown user"
    raise UsageError(
        f"{str(text)[:80]!r} is not a path: {problem}",
        where=where,
        cure="correct the path; an absolute one begins with /, one of your own with ~/",
    )


def _find_problem(text: str) -> str:
    try:
        length = len(os.fsencode(text))
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    if "\0" in text:
        return "it has a NUL"
    if length > MAX_BYTES:
        return f"it is longer than {MAX_BYTES:,} bytes"
    if any(len(os.fsencode(part)) > 255 for part in text.split("/")):
        return "a name in it is longer than 255 bytes"
    return ""

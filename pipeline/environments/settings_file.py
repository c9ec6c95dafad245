"""The settings file in force; the working directory may be a stranger's, and has no say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prepare.errors import UsageError
from prepare.user_path import user_path

VARIABLE = "PREPARE_SETTINGS"


def find_settings_file() -> Path | None:
    """Return the settings file in force, if any."""
    named = path_variable(VARIABLE)
    if named is None:
        users = xdg_folder("CONFIG", ".config") / "settings.yaml"
        return users if users.is_file() else None
    if not named.is_file():
        raise UsageError(
            "the settings file does not exist",
            where=f"--settings or {VARIABLE}: {named}",
            hint="correct the path; without it the user's default file or the defaults apply",
        )
    return named


@contextmanager
def use_settings(file: Path) -> Iterator[None]:
    """Use this file for the command and its stages."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(file.absolute())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def path_variable(name: str) -> Path | None:
    """Return a path variable; None if unset or empty."""
    value = os.environ.get(name)
    return absolute_from(Path.cwd(), Path(value), f"the variable {name}") if value else None


def xdg_folder(kind: str, default: str) -> Path:
    """Return prepare's XDG base directory of that kind."""
    base = os.environ.get(f"XDG_{kind}_HOME", "")
    # The specification ignores relative values.
    root = (
        Path(base) if Path(base).is_absolute() else user_path(f"~/{default}", "the variable HOME")
    )
    return root / "prepare"


def absolute_from(folder: Path, path: Path, where: str) -> Path:
    """Return `path` relative to `folder`, with `~` expanded.

    Links are kept: a virtual environment's python is one.
    """
    return (folder / user_path(path, where)).absolute()

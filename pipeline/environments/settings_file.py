"""Which settings file is in force: the one that is named, else the user's own.

The current folder is never searched. It may be a downloaded checkpoint, and a settings file decides
which programs run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import UsageError
from pipeline.core.user_path import user_path

VARIABLE = "PREPARE_SETTINGS"
SUGGESTED_NAME = "prepare.yaml"
"""The name that users give a settings file beside their work."""


def find_settings_file() -> Path | None:
    """The settings file in force, if there is one."""
    named = path_variable(VARIABLE)
    if named is None:
        users = xdg_folder("CONFIG", ".config") / "settings.yaml"
        return users if users.is_file() else None
    if not named.is_file():
        raise UsageError(
            "there is no such settings file",
            where=f"--settings or {VARIABLE}: {named}",
            hint="correct the path; without it the user's own file or the defaults hold",
        )
    return named


def unread_settings_file() -> str | None:
    """Name of a file in the current folder that may be meant as settings and is not read."""
    if os.environ.get(VARIABLE):
        return None
    # Path's raises where the folder may not be searched.
    return SUGGESTED_NAME if os.path.isfile(SUGGESTED_NAME) else None  # noqa: PTH113


@contextmanager
def use_settings(file: Path) -> Iterator[None]:
    """The file holds for this command and for the stages that it starts, from any folder."""
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
    """A path from the process's environment; an empty one counts as unset."""
    value = os.environ.get(name)
    return absolute_from(Path.cwd(), Path(value), f"the variable {name}") if value else None


def xdg_folder(kind: str, default: str) -> Path:
    """This program's own folder for `kind`, after the XDG base directory specification."""
    base = os.environ.get(f"XDG_{kind}_HOME", "")
    # The specification has relative values ignored.
    root = (
        Path(base) if Path(base).is_absolute() else user_path(f"~/{default}", "the variable HOME")
    )
    return root / "prepare"


def absolute_from(folder: Path, path: Path, where: str) -> Path:
    """`path` from `folder`, `~` expanded.

    Symbolic links stay: a virtual environment's python is one, and means its environment.
    """
    return (folder / user_path(path, where)).absolute()

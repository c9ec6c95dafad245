"""Failed pieces of a run, and the tries of each.

A failed piece is not tried again. If a process dies, its piece is tried again, TRIES times at most.

    runs/<run>/failed/<piece>          the error of a piece
    runs/<run>/tries/<piece>.<number>  a try that is in progress, or died
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from prepare.errors import PrepareError, StageError, StoreError, from_dict
from prepare.private_files import create_exclusively, make_folder, write_atomically
from prepare.untrusted import MAX_RECORD_BYTES, read_json_file

TRIES = 3
FAILED = "failed"
TRIED = "tries"


@dataclass(frozen=True)
class Tries:
    """One run's failed pieces and tries, in its folder."""

    run_folder: Path

    def failures(self) -> dict[str, PrepareError]:
        """Return the errors of this run's pieces."""
        folder = self.run_folder / FAILED
        errors = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # --retry removed it
                    errors[path.name] = _read_failure(path)
        return errors

    def fail(self, name: str, error: PrepareError) -> None:
        """Record a piece's error, so that no copy tries it again."""
        folder = self.run_folder / FAILED
        make_folder(folder)
        write_atomically(folder / name, json.dumps(error.to_dict()))

    def begin(self, name: str, title: str) -> Path | None:
        """Return a new try's file; None after too many, which fail the piece."""
        folder = self.run_folder / TRIED
        make_folder(folder)
        for number in range(1, TRIES + 1):
            path = folder / f"{name}.{number}"
            if create_exclusively(path, b""):
                return path
        died = f"{title}: each of {TRIES} processes that did this was killed"
        hint = "look for the reason in the system's log, often it is too little memory"
        self.fail(name, StageError(died, where=str(self.run_folder), hint=hint))
        return None


def _read_failure(path: Path) -> PrepareError:
    """Return a piece's error from an untrusted file."""
    try:
        told = read_json_file(path, limit=MAX_RECORD_BYTES)
        if not isinstance(told, dict):
            raise ValueError("it is no object")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        why = f"the error of a piece cannot be read: {error}"
        return StoreError(why, where=str(path), hint="remove it; the piece is then tried again")
    return from_dict(told)


def empty(folder: Path) -> None:
    """Forget tries, or have failed pieces tried again."""
    for path in folder.glob("[!.]*"):  # others are being written
        if not path.is_dir():
            path.unlink(missing_ok=True)

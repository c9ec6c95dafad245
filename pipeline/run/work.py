"""Works on a run until it is done; start as many copies as there are GPUs or nodes.

A copy finds a ready piece, takes its resources and lock, and does it. A failed piece is not tried
again. If a process dies, its piece is tried again, TRIES times at most.

    runs/<run>/failed/<piece>          the error of a piece
    runs/<run>/tries/<piece>.<number>  a try that is in progress, or died
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from prepare.errors import PrepareError, StageError, StageLostError, StoreError, from_dict
from prepare.events import Progress
from prepare.file_locks import doing, holder_of, is_locked
from prepare.interruption import is_interruption
from prepare.lots import NOTHING, Lot, Needs, Node
from prepare.private_files import create_exclusively, make_folder, write_atomically
from prepare.store import LOCKS, Store
from prepare.untrusted import MAX_RECORD_BYTES, read_json_file

POLL_S = 0.5
TRIES = 3
FAILED = "failed"
TRIED = "tries"


@dataclass(frozen=True)
class Piece:
    """What one process does in one go.

    `name` is that of lock and files, the same in every run. `do` may raise a PrepareError.
    """

    name: str
    title: str
    do: Callable[[Lot], None]
    is_done: Callable[[], bool]
    needs: Needs = NOTHING


Failures = Mapping[str, PrepareError]
Find = Callable[[Failures], Sequence[Piece]]
"""Pieces that are ready and not done, urgent ones first; none once nothing is left."""


@dataclass
class Copy:
    """One process that works on a run."""

    store: Store
    folder: Path
    node: Node
    progress: Progress
    _told: set[str] = field(default_factory=set)

    def work(self, find: Find) -> None:
        """Do pieces until none is left; raises as `find`."""
        while pieces := find(self.failures()):
            if not any(self._try(piece) for piece in pieces):
                self._wait(pieces)

    def failures(self) -> dict[str, PrepareError]:
        """Return the errors of this run's pieces."""
        folder = self.folder / FAILED
        found = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # --retry removed it
                    found[path.name] = _read_failure(path)
        return found

    def _try(self, piece: Piece, *, wait: bool = False) -> bool:
        """Do the piece, or find it done; return whether so."""
        with ExitStack() as held:
            held.enter_context(doing(piece.title))
            tell = self._tell if wait else lambda text: None
            # First the node's resources, then the piece: a process never waits while it holds a
            # piece.
            lot = held.enter_context(self.node.take(piece.needs, tell, wait=wait))
            if lot is None or not held.enter_context(self.store.hold(piece.name, wait=False)):
                return False
            if not piece.is_done():
                self._do(piece, lot)
            return True

    def _wait(self, pieces: Sequence[Piece]) -> None:
        """Wait for another process or for resources."""
        locks = {piece.name: self.store.root / LOCKS / piece.name for piece in pieces}
        free = [piece for piece in pieces if not is_locked(locks[piece.name])]
        if free:
            self._try(free[0], wait=True)
            return
        if who := holder_of(locks[pieces[0].name]):
            self._tell(who)
        time.sleep(POLL_S)

    def _tell(self, who: str) -> None:
        if who not in self._told:
            self._told.add(who)
            self.progress.note(f"waiting for {who}")

    def _do(self, piece: Piece, lot: Lot) -> None:
        if (attempt := self._begin(piece)) is None:
            return
        try:
            piece.do(lot)
        except StageLostError as error:
            self.progress.note(f"{piece.title}: {error}")  # the other process goes on with it
            time.sleep(random.uniform(0, POLL_S))  # noqa: S311  # else two could stop each other
        except PrepareError as error:
            if is_interruption(error):
                raise
            self.fail(piece.name, error)
        finally:
            attempt.unlink(missing_ok=True)

    def _begin(self, piece: Piece) -> Path | None:
        """Return a new try's file; None after too many."""
        folder = self.folder / TRIED
        make_folder(folder)
        for number in range(1, TRIES + 1):
            path = folder / f"{piece.name}.{number}"
            if create_exclusively(path, b""):
                return path
        logs = self.folder
        died = f"each of {TRIES} processes that did this was killed"
        hint = "look for the reason in the system's log, often it is too little memory"
        self.fail(piece.name, StageError(f"{piece.title}: {died}", where=str(logs), hint=hint))
        return None

    def fail(self, name: str, error: PrepareError) -> None:
        make_folder(self.folder / FAILED)
        write_atomically(self.folder / FAILED / name, json.dumps(error.to_dict()))


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

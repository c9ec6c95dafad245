"""Run directories of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.core.file_locks import is_locked, locked
from pipeline.core.private_files import private_umask
from pipeline.core.store import Store

RUN_RECORD = "run.json"
ALIVE = "alive"
"""Lock of the run's main process."""


class RunFolders:
    """Run directories of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "runs"

    def make(self, run_id: str, *, is_new: bool = True) -> Path:
        """Create and return a run's folder; StoreError if that fails.

        Unless `is_new`, it may exist.
        """
        folder, store = self._folder / run_id, self._store
        store.make_root()
        with store.explain_errors(), private_umask(store.root):
            folder.mkdir(parents=True, exist_ok=not is_new)
        return folder

    def all(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.is_dir())

    @contextmanager
    def hold_alive(self, folder: Path) -> Iterator[bool]:
        """Show that the main process lives; yield whether this is it."""
        with ExitStack() as held:
            with self._store.explain_errors():
                is_main = held.enter_context(locked(folder / ALIVE, wait=False))
            yield is_main


def is_alive(folder: Path) -> bool:
    """Return whether the main process lives, anywhere."""
    return is_locked(folder / ALIVE)

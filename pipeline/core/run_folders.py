"""Run directories of a store: one for each run, with its record and logs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.leases import Leases
from pipeline.core.private_files import private_umask
from pipeline.core.store import Store

RUN_RECORD = "run.json"
IN_USE = "work"
"""Folder of the leases of processes that use a run."""


class RunFolders:
    """Run directories of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "runs"

    def make(self, run_id: str) -> Path:
        """Create and return a run's folder; raise StoreError if that fails."""
        folder, store = self._folder / run_id, self._store
        store.make_root()
        with store.explain_errors(), private_umask(store.root):
            folder.mkdir(parents=True)
        return folder

    def all(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.is_dir())

    def maybe_running(self) -> list[Path]:
        return [run for run in self.all() if (run / RUN_RECORD).is_file()]

    def leases(self, folder: Path) -> Leases:
        return Leases(FileKeyValueStore(folder))

    @contextmanager
    def hold_in_use(self, folder: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Mark the run as in use by this process, whether its main process lives or not.

        Garbage collection keeps what the run uses; a collection in progress is waited for.
        """
        leases, key = self._user_leases(folder), uuid.uuid4().hex
        with self._store.explain_errors():
            lease = leases.create(key)
        try:
            with self._store.explain_errors():
                self._store.wait_for_collection(on_wait)
            yield
        finally:
            lease.release(forget=True)
            with suppress(OSError):
                (folder / IN_USE / key).rmdir()

    def is_in_use(self, folder: Path) -> bool:
        leases = self._user_leases(folder)
        return any(
            leases.is_held(key)
            for key in {PurePosixPath(name).parts[0] for name in leases.store.names("")}
        )

    def _user_leases(self, folder: Path) -> Leases:
        return Leases(FileKeyValueStore(folder / IN_USE))

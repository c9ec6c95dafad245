"""Run directories of a store: one for each run, with its record and logs.

With an object store, other nodes see the record while it grows; logs stay on the node.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.leases import Leases
from pipeline.core.object_store import ObjectStore
from pipeline.core.private_files import private_umask
from pipeline.core.store import Store, write_atomically

RUN_RECORD = "run.json"
RUNNING = "running"
"""Prefix in an object store: current records and leases of unfinished runs."""
IN_USE = "work"
"""Folder of the leases of processes that use a run."""
GROWING = ".growing"
"""Marker file: the record was fetched from another node and may have grown since."""


class RunFolders:
    """Run directories of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "runs"

    def make(self, run_id: str) -> Path:
        """Create and return a run's folder; raise StoreError if that fails."""
        folder, store = self._folder / run_id, self._store
        if store.remote is not None:
            store.remote.objects.check()
        store.make_root()
        with store.explain_errors(), private_umask(store.root):
            folder.mkdir(parents=True)
        return folder

    def all(self) -> list[Path]:
        if self._store.remote is not None:
            with self._store.explain_errors(), private_umask():
                _fetch_records(self._store.remote.objects, self._folder)
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.is_dir())

    def maybe_running(self) -> list[Path]:
        if self._store.remote is None:
            return [run for run in self.all() if (run / RUN_RECORD).is_file()]
        begun = self._store.remote.objects.names(RUNNING)
        return [self._folder / name for name in sorted({PurePosixPath(n).parts[0] for n in begun})]

    def leases(self, folder: Path) -> Leases:
        if self._store.remote is not None:
            return Leases(self._store.remote.objects.below(f"{RUNNING}/{folder.name}"))
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
        if self._store.remote is not None:
            return Leases(self._store.remote.objects.below(f"{RUNNING}/{folder.name}/{IN_USE}"))
        return Leases(FileKeyValueStore(folder / IN_USE))

    def publish_record(self, folder: Path, *, is_over: bool) -> None:
        if self._store.remote is not None:
            objects, growing = self._store.remote.objects, f"{RUNNING}/{folder.name}/{RUN_RECORD}"
            content = (folder / RUN_RECORD).read_bytes()
            objects.put(f"runs/{folder.name}.json" if is_over else growing, content)
            if is_over:
                objects.remove(growing)


def _fetch_records(objects: ObjectStore, runs: Path) -> None:
    running = {
        path.parts[0]: f"{RUNNING}/{path}"
        for path in map(PurePosixPath, objects.names(RUNNING))
        if path.parts[1:] == (RUN_RECORD,)
    }
    over = {
        name.removesuffix(".json"): f"runs/{name}"
        for name in objects.names("runs")
        if "/" not in name and name.endswith(".json")
    }
    for run, name in {**running, **over}.items():
        folder, growing = runs / run, runs / run / GROWING
        if (folder / RUN_RECORD).exists() and not growing.exists():
            continue  # local, or finished
        content = objects.get(name)
        if content is None:
            continue  # finished in the meantime
        folder.mkdir(parents=True, exist_ok=True)
        growing.touch()
        write_atomically(folder / RUN_RECORD, content.decode(errors="replace"))
        if run in over:
            growing.unlink(missing_ok=True)

"""Finds what an object store need not keep: stages, runs, answers, and unused content.

Content is removed last, after its stage, so a kill leaves no incomplete stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from eval_gates.answer_log import book_of_part
from pipeline.core.errors import StoreError
from pipeline.core.object_store import ObjectInfo
from pipeline.core.remote_store import RemoteStore
from pipeline.core.run_folders import RUNNING
from pipeline.core.store import COLLECTION, Store


@dataclass(frozen=True)
class GarbageObject:
    """One object, and its copy in the node's cache."""

    kind: str
    path: Path
    size: int  # bytes
    name: str  # below the store's URL


def refuse_while_written(store: Store) -> None:
    """Raise StoreError while a user writes a stage or an answer log, in any run."""
    if store.remote is None:
        return
    names = map(PurePosixPath, store.remote.objects.names("leases"))
    done = {key for _, key in store.remote.keys("*")}
    for key in {path.parts[0] for path in names} - done - {COLLECTION}:
        if store.leases.is_held(key):
            raise StoreError(
                "something is being written, and what it will use is not known yet",
                where=f"{store.remote.objects.url}/leases/{key}",
                hint="wait until it is done",
            )


def objects_to_go(
    store: Store,
    kept_stages: Collection[tuple[str, str]],
    kept_runs: Collection[str],
    kept_books: Collection[str | None],
    oldest: datetime,
) -> list[GarbageObject]:
    """Return what is neither kept, nor younger than `oldest`, nor content of a kept stage.

    Records of promotions stay: they name the registries to ask, and are small.
    """
    remote = store.remote
    if remote is None:
        return []
    old = _ExpiredListing(remote, store.root, oldest)
    stages = [
        each
        for each in old.objects("stages", "stage")
        if (each.path.parent.name, each.path.name) not in kept_stages
        and each.path.parent.name != "promote"
    ]
    runs = [
        *(each for each in old.objects("runs", "run") if each.path.name not in kept_runs),
        *(
            each
            for each in old.objects(RUNNING, "run")
            if PurePosixPath(each.name).parts[1] not in kept_runs
        ),
    ]
    answers = [
        each
        for each in old.objects("answers", "answers")
        if book_of_part(Path(each.name)) not in kept_books
    ]
    used = _blobs_of_stages(remote, {each.name for each in stages})
    contents = [e for e in old.objects("blobs", "content") if e.path.name not in used]
    return [*stages, *old.objects("unfinished", "unfinished stage"), *runs, *answers, *contents]


def copies_to_go(store: Store, gone: Collection[str], oldest: datetime) -> Iterator[Path]:
    """Yield content of the node's cache that is not in the object store, or is removed there."""
    if store.remote is None:
        return
    there = set(store.remote.objects.names("blobs")) - set(gone)
    for path in sorted((store.root / "blobs").glob("[0-9a-f]*")):
        if path.name not in there and path.stat().st_mtime < oldest.timestamp():
            yield path


class _ExpiredListing:
    """Old objects below a store's URL."""

    def __init__(self, remote: RemoteStore, cache: Path, oldest: datetime) -> None:
        self._remote, self._cache, self._oldest = remote, cache, oldest

    def objects(self, folder: str, kind: str) -> Iterator[GarbageObject]:
        found: dict[str, ObjectInfo] = self._remote.objects.list_objects(folder)
        for name, each in sorted(found.items()):
            if each.written < self._oldest:
                path = self._cache / folder / name.removesuffix(".json")
                yield GarbageObject(kind, path, each.size, f"{folder}/{name}")


def _blobs_of_stages(remote: RemoteStore, gone: Collection[str]) -> set[str]:
    used: set[str] = set()
    for stage, key in remote.keys("*"):
        marker = remote.find(stage, key) if f"stages/{stage}/{key}.json" not in gone else None
        used |= {blob.sha256 for blob in marker.files.values()} if marker is not None else set()
    return used

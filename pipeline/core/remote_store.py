"""The part of a store that is in an object store; the store's directory on a node is its cache.

Layout, below the store's URL::

    stages/<stage>/<key>.json     a finished stage: its record, and its files by digest
    blobs/<sha256>                contents of files, each once
    leases/<key>/...              leases.py
    answers/<digest>.*.jsonl      segments of answer logs
    unfinished/<stage>/...        partial results that must not be measured again
    attempts/, measurements/, runs/<run>.json      as in the directory

A stage exists if and only if its first object exists. That object is written last, and only if it
is absent, so a stage is always complete. In the cache, `blobs/` has each content once; the files of
stages are hard links to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from pipeline.core.digest import digest_bytes
from pipeline.core.errors import StoreError
from pipeline.core.fsync import flush_folder
from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.leases import Leases
from pipeline.core.object_store import ObjectStore, check_url
from pipeline.core.private_files import private_umask, untrusted_reason
from pipeline.core.record import Record
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.stage_record import StageRecord
from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.names import check_tree
from pipeline.core.untrusted.record import parse_record

FILE = "remote"
"""File in the cache with the store's URL."""
MAX_PART_BYTES = 512 * MEBIBYTE
"""Limit of one file of partial results, or one segment of an answer log."""


class StoredFile(Record):
    """Content of one file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0, description="bytes")


def _check_files(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    check_tree(files)
    return files


Files = Annotated[dict[str, StoredFile], AfterValidator(_check_files)]
"""Contents of a directory by relative path."""


class StageManifest(Record):
    """Record and files of a finished stage, as published."""

    schema_version: int = Field(1, description="of this record")
    record: StageRecord
    files: Files = Field(description="files of the stage's directory")


def cache_folder(url: str, home: Path) -> Path:
    """Return this node's cache directory for the URL; create it if necessary.

    Raises:
        StoreError: another user may have written there, or it belongs to another URL.
    """
    folder = home / "cache" / _cache_name(url)
    if not (folder / FILE).is_file():
        _write_url(folder, url)
    _check_cache(folder, url)
    return folder


def remote_url(folder: Path) -> str | None:
    """Return the URL that the directory is a cache of; None if it is not a cache.

    Raises:
        StoreError: the directory is not readable.
    """
    try:
        return (folder / FILE).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise StoreError(
            "the store belongs to another user and is not readable",
            where=str(folder),
            hint="use your own folder with --store DIR, or ask its owner to share it with one of "
            f"your groups: `chgrp -R GROUP {folder}`, `chmod 2770 {folder}`",
        ) from error


def open_remote(folder: Path) -> RemoteStore | None:
    """Return the object store behind a cache; None for an ordinary directory."""
    url = remote_url(folder)
    if url is None:
        url = os.environ.get(REMOTE_STORE_VARIABLE, "")
        if not url or folder.name != _cache_name(url):
            return None
        _write_url(folder, url)  # the run started on another node
    _check_cache(folder, url)
    os.environ[REMOTE_STORE_VARIABLE] = url  # for child stages
    return RemoteStore(ObjectStore(check_url(url, str(folder / FILE))), folder)


def _cache_name(url: str) -> str:
    return digest_bytes(url.encode())[:16]


def _check_cache(folder: Path, url: str) -> None:
    why = untrusted_reason(
        folder.parent, folder, folder / FILE, folder / "blobs", folder / "stages"
    )
    if not why and (folder.name != _cache_name(url) or remote_url(folder) != url):
        why = f"it contains the URL {url}, whose cache is another folder"
    if why:
        raise StoreError(
            f"the cache of an object store cannot be used: {why}",
            where=str(folder),
            hint="delete the folder if it is yours, or set PREPARE_HOME to a folder that only you "
            "can write to",
        )


def _write_url(folder: Path, url: str) -> None:
    temporary = folder / f".{FILE}.{os.getpid()}"
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(url + "\n", encoding="utf-8")
    temporary.replace(folder / FILE)


class RemoteStore:
    """Object store behind a cache, which is the store's directory on this node."""

    def __init__(self, objects: ObjectStore, cache: Path) -> None:
        self.objects = objects
        self._cache = cache
        # Coordinates downloads of this node's processes.
        self._fetching = Leases(FileKeyValueStore(cache / "fetching"))

    def find(self, stage: str, key: str) -> StageManifest | None:
        """Return a finished stage, or None; raise StoreError if it is damaged."""
        content = self.objects.get(_manifest_name(stage, key))
        if content is None:
            return None
        try:
            marker = parse_record(content, StageManifest)
            if (marker.record.stage, marker.record.key) != (stage, key):
                raise ValueError("it belongs to another stage")
        except ValueError as error:
            raise StoreError(
                "a stage's record is damaged",
                where=f"{self.objects.url}/{_manifest_name(stage, key)}",
                hint="delete the object to have the stage run again",
            ) from error
        return marker

    def keys(self, stage: str) -> list[tuple[str, str]]:
        """Return sorted (name, key) pairs of finished stages; `*` selects all names."""
        names = self.objects.names("stages" if stage == "*" else f"stages/{stage}")
        paths = [PurePosixPath(name if stage == "*" else f"{stage}/{name}") for name in names]
        return [(path.parts[0], path.stem) for path in paths if len(path.parts) == 2]

    def publish(self, folder: Path, record: StageRecord, may: Callable[[], bool]) -> bool:
        """Publish the stage; return False if it exists already or `may` returns False.

        Args:
            may: is called last, because the upload can take hours.
        """
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():  # follows links, which other nodes lack
                files[path.relative_to(folder).as_posix()] = self._upload(path)
        marker = StageManifest(record=record, files=files)
        content = marker.model_dump_json().encode()
        return may() and self.objects.put_if_absent(
            _manifest_name(record.stage, record.key), content
        )

    def unpublish(self, stage: str, key: str) -> None:
        """Remove the stage's manifest; contents stay until garbage collection."""
        self.objects.remove(_manifest_name(stage, key))

    def fetch(self, marker: StageManifest, final: Path) -> None:
        """Download the stage into the cache, unless it is there."""
        temporary = final.with_name(f"{final.name}.fetched.{os.getpid()}")
        with self._fetching.hold(final.name):
            if final.is_dir():
                return
            with private_umask():
                for left in _abandoned(final.parent.glob(f"{final.name}.fetched.*")):
                    shutil.rmtree(left, ignore_errors=True)
                temporary.mkdir(parents=True)
                for name, blob in marker.files.items():
                    path = temporary / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._link(self._fetch_blob(blob), path)
            flush_folder(temporary)
            temporary.rename(final)

    def upload_unfinished(self, folder: Path, names: Iterable[str]) -> None:
        """Upload these files, so that an attempt on another node can continue them.

        Args:
            names: files to upload; directories stay, since they are large and can be recomputed.
        """
        for name in names:
            if (folder / name).is_file():
                content = (folder / name).read_bytes()
                self.objects.put(f"unfinished/{folder.parent.name}/{folder.name}/{name}", content)

    def fetch_unfinished(self, final: Path, latest: str) -> None:
        """Download the partial results of an attempt later than `latest`, if any."""
        place = f"unfinished/{final.parent.name}"
        paths = [PurePosixPath(name) for name in self.objects.names(place)]
        found = [path for path in paths if len(path.parts) == 2]  # uploaded attempts are flat
        tries = {path.parts[0] for path in found if path.parts[0].startswith(f"{final.name}.")}
        last = max(tries, default="")
        if last <= latest:
            return
        temporary = final.with_name(f".{last}.{os.getpid()}")
        with private_umask():
            temporary.mkdir(parents=True, exist_ok=True)
            for path in found:
                if path.parts[0] == last:
                    file = temporary / path.name
                    self.objects.download(f"{place}/{path}", file, MAX_PART_BYTES)
        with suppress(FileExistsError, OSError):
            temporary.rename(final.with_name(last))

    def remove_unfinished(self, final: Path) -> None:
        place = f"unfinished/{final.parent.name}"
        for name in self.objects.names(place):
            if name.startswith(f"{final.name}."):
                self.objects.remove(f"{place}/{name}")

    def download_files(self, folder: str, names: Iterable[str]) -> None:
        """Download small objects of a folder into the cache, unless present."""
        with private_umask():
            (self._cache / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            path = self._cache / folder / PurePosixPath(name).name
            if path.exists():
                continue
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            with private_umask():
                if self.objects.download(f"{folder}/{name}", temporary, MAX_PART_BYTES):
                    temporary.replace(path)

    def _upload(self, file: Path) -> StoredFile:
        blob = upload_blob(self.objects, file)
        kept = self._blob(blob)
        if not file.is_symlink():
            with suppress(OSError):  # present already, or no hard links
                os.link(file, kept)
        return blob

    def _fetch_blob(self, blob: StoredFile) -> Path:
        kept = self._blob(blob)
        if _has_size(kept, blob):
            return kept
        # Two stages may share a content, and two processes may download it.
        with self._fetching.hold(blob.sha256, forget=True):
            if _has_size(kept, blob):
                return kept
            for left in _abandoned(kept.parent.glob(f".{blob.sha256}.*")):
                left.unlink(missing_ok=True)
            temporary = kept.with_name(f".{blob.sha256}.{os.getpid()}")
            fetch_blob(self.objects, blob, temporary)
            temporary.rename(kept)
        return kept

    def _blob(self, blob: StoredFile) -> Path:
        folder = self._cache / "blobs"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / blob.sha256

    def _link(self, kept: Path, path: Path) -> None:
        try:
            os.link(kept, path)
        except OSError:
            shutil.copyfile(kept, path)


def _has_size(file: Path, blob: StoredFile) -> bool:
    return file.is_file() and file.stat().st_size == blob.size


def _abandoned(found: Iterable[Path]) -> list[Path]:
    own = str(os.getpid())
    return [
        path
        for path in found
        if path.name.rpartition(".")[2] == own
        or not Path("/proc", path.name.rpartition(".")[2]).exists()
    ]


def upload_blob(objects: ObjectStore, file: Path) -> StoredFile:
    """Upload the file's content unless it exists."""
    with file.open("rb") as content:
        blob = StoredFile(
            sha256=hashlib.file_digest(content, "sha256").hexdigest(), size=file.stat().st_size
        )
    if not objects.has(f"blobs/{blob.sha256}"):
        objects.upload(file, f"blobs/{blob.sha256}")
    return blob


def fetch_blob(objects: ObjectStore, blob: StoredFile, file: Path) -> None:
    """Download the content into a new file; raise StoreError if it is missing or damaged."""
    where = f"{objects.url}/blobs/{blob.sha256}"
    if not objects.download(f"blobs/{blob.sha256}", file, blob.size):
        raise StoreError(
            "content of a finished stage is missing in the store",
            where=where,
            hint="delete the stage's record there, below stages/, to have it run again",
        )
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != blob.sha256:
        file.unlink()
        raise StoreError(
            "content of a finished stage is damaged in the store",
            where=where,
            hint="delete it and the stage's record, below stages/, to have it run again",
        )


def _manifest_name(stage: str, key: str) -> str:
    return f"stages/{stage}/{key}.json"

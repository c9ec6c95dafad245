"""What of a store lies in an object store; the store's folder on a node is then its cache.

Layout, below the store's URL::

    stages/<stage>/<key>.json     a finished stage: its record, and what its folder has, by digest
    blobs/<sha256>                the content of files, each once
    claims/<key>/...              claims.py
    answers/<digest>.*.jsonl      parts of answer books
    unfinished/<stage>/...        what a try has measured that is not to be measured anew
    attempts/, measurements/, runs/<run>.json      as in the folder

A stage is there if and only if its first object is, which is written last, and only if there is
none: so it is whole, whoever else wrote to the same stage meanwhile. In the cache, `blobs/` has
each content once, and the files of stages are hard links to it.
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

FILE = "origin"
"""In the cache: the store's URL."""
MAX_PART_BYTES = 512 * MEBIBYTE
"""Of rows that a try has measured, or that a writer has added to an answer log."""


class Blob(Record):
    """Content of one file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0, description="bytes")


def _check_files(files: dict[str, Blob]) -> dict[str, Blob]:
    check_tree(files)
    return files


Files = Annotated[dict[str, Blob], AfterValidator(_check_files)]
"""What a folder has, by path in it."""


class StageManifest(Record):
    """A finished stage, as it is told to all."""

    schema_version: int = Field(1, description="of this record")
    record: StageRecord
    files: Files = Field(description="of the stage's folder")


def cache_folder(url: str, home: Path) -> Path:
    """The folder of this node that stands for the store of that URL, made if it is not there.

    Raises:
        StoreError: another user may have put something there, or it names another store.
    """
    folder = home / "cache" / _cache_name(url)
    if not (folder / FILE).is_file():
        _write_url(folder, url)
    _check_cache(folder, url)
    return folder


def remote_url(folder: Path) -> str | None:
    """The URL of the store that the folder is a cache of, if it says that it is one.

    Raises:
        StoreError: we may not look into the folder.
    """
    try:
        return (folder / FILE).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise StoreError(
            "the store is another user's, and we may not look into it",
            where=str(folder),
            cure="name a folder of your own with --store DIR, or have its owner share it with a "
            f"group that you are in: `chgrp -R GROUP {folder}`, `chmod 2770 {folder}`",
        ) from error


def open_remote(folder: Path) -> RemoteStore | None:
    """The object store that the folder is a cache of, if it is one."""
    url = remote_url(folder)
    if url is None:
        url = os.environ.get(REMOTE_STORE_VARIABLE, "")
        if not url or folder.name != _cache_name(url):
            return None
        _write_url(folder, url)  # of a run that began on another node
    _check_cache(folder, url)
    os.environ[REMOTE_STORE_VARIABLE] = url  # for the stages that we start
    return RemoteStore(ObjectStore(check_url(url, str(folder / FILE))), folder)


def _cache_name(url: str) -> str:
    return digest_bytes(url.encode())[:16]


def _check_cache(folder: Path, url: str) -> None:
    why = untrusted_reason(
        folder.parent, folder, folder / FILE, folder / "blobs", folder / "stages"
    )
    if not why and (folder.name != _cache_name(url) or remote_url(folder) != url):
        why = f"it names the store {url}, whose cache has another folder"
    if why:
        raise StoreError(
            f"the cache of an object store is not used: {why}",
            where=str(folder),
            cure="delete the folder if it is yours, or set PREPARE_HOME to a folder that only you "
            "may write to",
        )


def _write_url(folder: Path, url: str) -> None:
    beside = folder / f".{FILE}.{os.getpid()}"
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
        beside.write_text(url + "\n", encoding="utf-8")
    beside.replace(folder / FILE)


class RemoteStore:
    """The object store behind a cache.

    Args:
        objects: all that lies below the store's URL.
        cache: the store's folder on this node, which exists.
    """

    def __init__(self, objects: ObjectStore, cache: Path) -> None:
        self.objects = objects
        self._cache = cache
        # Of this node alone: who fetches what into the cache.
        self._fetching = Leases(FileKeyValueStore(cache / "fetching"))

    def find(self, stage: str, key: str) -> StageManifest | None:
        """The finished stage; raises StoreError where it is damaged."""
        content = self.objects.get(_manifest_name(stage, key))
        if content is None:
            return None
        try:
            marker = parse_record(content, StageManifest)
            if (marker.record.stage, marker.record.key) != (stage, key):
                raise ValueError("it is another stage's")
        except ValueError as error:
            raise StoreError(
                "a stage's record is damaged",
                where=f"{self.objects.url}/{_manifest_name(stage, key)}",
                cure="delete the object to have the stage run again",
            ) from error
        return marker

    def keys(self, stage: str) -> list[tuple[str, str]]:
        """Name and key of the finished stages of that name, or of any for `*`, sorted."""
        names = self.objects.names("stages" if stage == "*" else f"stages/{stage}")
        paths = [PurePosixPath(name if stage == "*" else f"{stage}/{name}") for name in names]
        return [(path.parts[0], path.stem) for path in paths if len(path.parts) == 2]

    def publish(self, folder: Path, record: StageRecord, may: Callable[[], bool]) -> bool:
        """Have everyone find the stage in that folder; False where there is one, or we may not.

        Args:
            may: is asked last, for sending the content may take hours.
        """
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():  # also one that a link leads to, which no other node would find
                files[path.relative_to(folder).as_posix()] = self._upload(path)
        marker = StageManifest(record=record, files=files)
        content = marker.model_dump_json().encode()
        return may() and self.objects.put_if_absent(
            _manifest_name(record.stage, record.key), content
        )

    def unpublish(self, stage: str, key: str) -> None:
        """Have nobody find the stage; what its files had stays."""
        self.objects.remove(_manifest_name(stage, key))

    def fetch(self, marker: StageManifest, final: Path) -> None:
        """Make the stage's folder in the cache, unless it is there already."""
        beside = final.with_name(f"{final.name}.fetched.{os.getpid()}")
        with self._fetching.hold(final.name):
            if final.is_dir():
                return
            with private_umask():
                for left in _abandoned(final.parent.glob(f"{final.name}.fetched.*")):
                    shutil.rmtree(left, ignore_errors=True)
                beside.mkdir(parents=True)
                for name, blob in marker.files.items():
                    path = beside / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._link(self._fetch_blob(blob), path)
            flush_folder(beside)
            beside.rename(final)

    def upload_unfinished(self, folder: Path, names: Iterable[str]) -> None:
        """Let a try at a stage on another node go on with these files of the folder.

        Args:
            folder: of a try that has ended, named by its claim.
            names: files, or folders, which stay: they are large, and can be made again.
        """
        for name in names:
            if (folder / name).is_file():
                content = (folder / name).read_bytes()
                self.objects.put(f"unfinished/{folder.parent.name}/{folder.name}/{name}", content)

    def fetch_unfinished(self, final: Path, latest: str) -> None:
        """Have here what a later try than `latest`, of a folder's name, has left elsewhere."""
        place = f"unfinished/{final.parent.name}"
        paths = [PurePosixPath(name) for name in self.objects.names(place)]
        found = [path for path in paths if len(path.parts) == 2]  # a try's folder has no folders
        tries = {path.parts[0] for path in found if path.parts[0].startswith(f"{final.name}.")}
        last = max(tries, default="")
        if last <= latest:
            return
        beside = final.with_name(f".{last}.{os.getpid()}")
        with private_umask():
            beside.mkdir(parents=True, exist_ok=True)
            for path in found:
                if path.parts[0] == last:
                    file = beside / path.name
                    self.objects.download(f"{place}/{path}", file, MAX_PART_BYTES)
        with suppress(FileExistsError, OSError):
            beside.rename(final.with_name(last))

    def remove_unfinished(self, final: Path) -> None:
        """The stage is done: nobody goes on with it."""
        place = f"unfinished/{final.parent.name}"
        for name in self.objects.names(place):
            if name.startswith(f"{final.name}."):
                self.objects.remove(f"{place}/{name}")

    def download_files(self, folder: str, names: Iterable[str]) -> None:
        """Have these small objects of a folder as files of the cache."""
        with private_umask():
            (self._cache / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            path = self._cache / folder / PurePosixPath(name).name
            if path.exists():
                continue
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            with private_umask():
                if self.objects.download(f"{folder}/{name}", beside, MAX_PART_BYTES):
                    beside.replace(path)

    def _upload(self, file: Path) -> Blob:
        blob = upload_blob(self.objects, file)
        kept = self._blob(blob)
        if not file.is_symlink():
            with suppress(OSError):  # there already, or without hard links
                os.link(file, kept)
        return blob

    def _fetch_blob(self, blob: Blob) -> Path:
        kept = self._blob(blob)
        if _has_size(kept, blob):
            return kept
        # Two stages may have one content, and two processes may want it.
        with self._fetching.hold(blob.sha256, forget=True):
            if _has_size(kept, blob):
                return kept
            for left in _abandoned(kept.parent.glob(f".{blob.sha256}.*")):
                left.unlink(missing_ok=True)
            beside = kept.with_name(f".{blob.sha256}.{os.getpid()}")
            fetch_blob(self.objects, blob, beside)
            beside.rename(kept)
        return kept

    def _blob(self, blob: Blob) -> Path:
        folder = self._cache / "blobs"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / blob.sha256

    def _link(self, kept: Path, path: Path) -> None:
        try:
            os.link(kept, path)
        except OSError:
            shutil.copyfile(kept, path)


def _has_size(file: Path, blob: Blob) -> bool:
    return file.is_file() and file.stat().st_size == blob.size


def _abandoned(found: Iterable[Path]) -> list[Path]:
    """Of files and folders that end with their process's id those whose process is gone, or us."""
    own = str(os.getpid())
    return [
        path
        for path in found
        if path.name.rpartition(".")[2] == own
        or not Path("/proc", path.name.rpartition(".")[2]).exists()
    ]


def upload_blob(objects: ObjectStore, file: Path) -> Blob:
    """Have the file's content in the store, once."""
    with file.open("rb") as content:
        blob = Blob(
            sha256=hashlib.file_digest(content, "sha256").hexdigest(), size=file.stat().st_size
        )
    if not objects.has(f"blobs/{blob.sha256}"):
        objects.upload(file, f"blobs/{blob.sha256}")
    return blob


def fetch_blob(objects: ObjectStore, blob: Blob, file: Path) -> None:
    """Write the content into a new file; raises StoreError where it is gone, or damaged."""
    where = f"{objects.url}/blobs/{blob.sha256}"
    if not objects.download(f"blobs/{blob.sha256}", file, blob.size):
        raise StoreError(
            "content of a finished stage is gone from the store",
            where=where,
            cure="delete the stage's record there, below stages/, to have it run again",
        )
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != blob.sha256:
        file.unlink()
        raise StoreError(
            "content of a finished stage is damaged in the store",
            where=where,
            cure="delete it and the stage's record, below stages/, to have it run again",
        )


def _manifest_name(stage: str, key: str) -> str:
    return f"stages/{stage}/{key}.json"

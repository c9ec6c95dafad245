"""An OCI image layout in a folder: blobs named by their digests, and an index of manifests.

Every change flushes and renames a new file, so a kill leaves the old or the new state.
Specification: OCI image-spec 1.1, image-layout.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts.registry.model_pack import MANIFEST_BYTES, Blob, as_json, check_digest
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError
from pipeline.core.file_digests import BLOCK_BYTES
from pipeline.core.fsync import flush_folder
from pipeline.core.untrusted.file import MEBIBYTE, open_regular, read_regular
from pipeline.core.untrusted.json import read_json_file

LAYOUT_FILE = "oci-layout"
INDEX_FILE = "index.json"
INDEX_BYTES = 32 * MEBIBYTE
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# ioctl of linux/fs.h: the file becomes a copy of another one that shares its blocks.
FICLONE = 0x40049409


class OciLayout:
    """One folder in that layout, created on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        return (self.folder / INDEX_FILE).is_file() and (self.folder / LAYOUT_FILE).is_file()

    def make(self) -> None:
        self._blobs().mkdir(parents=True, exist_ok=True)
        if not (self.folder / LAYOUT_FILE).is_file():
            self.replace(LAYOUT_FILE, as_json({"imageLayoutVersion": "1.0.0"}))
        if not (self.folder / INDEX_FILE).is_file():
            self.write_index({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []})

    def read_index(self) -> dict[str, Any]:
        """Return the index; it has no manifests without a layout.

        Raises:
            RegistryError: it is damaged.
        """
        file = self.folder / INDEX_FILE
        try:
            index: dict[str, Any] = read_json_file(file, limit=INDEX_BYTES)
        except FileNotFoundError:
            return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
        except ValueError as error:
            raise _damaged_index(file, str(error)) from error
        if not _is_index(index):
            raise _damaged_index(file, "it is not a list of manifests")
        return index

    def write_index(self, index: dict[str, Any]) -> None:
        self.replace(INDEX_FILE, as_json(index))

    def replace(self, name: str, content: bytes) -> None:
        new_file = self.folder / f".{name}.{os.getpid()}"
        with new_file.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self.folder / name)
        flush_folder(self.folder)

    def blob_path(self, digest: str) -> Path:
        """Return a blob's path; raises RegistryError for an invalid digest."""
        try:
            check_digest(digest)
        except ValueError as error:
            raise _damaged_index(self.folder / INDEX_FILE, str(error)) from error
        return self._blobs() / digest.partition(":")[2]

    def whole_blob(self, digest: str) -> Path:
        """Return the blob's file; raises RegistryError if it is lost."""
        path = self.blob_path(digest)
        if not path.is_file():
            raise _damaged_blob(path, "is missing")
        return path

    def digests(self) -> set[str]:
        return {f"sha256:{path.name}" for path in self._blobs().glob("*")}

    def read_blob(self, blob: Blob) -> bytes:
        """Return the bytes of a small blob.

        Raises:
            RegistryError: it is missing or damaged.
        """
        path = self.blob_path(blob.digest)
        try:
            content = read_regular(path, MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise _damaged_blob(path, "is missing") from error
        if Blob.of(content).digest != blob.digest:
            raise _damaged_blob(path, "was changed")
        return content

    def put_bytes(self, content: bytes, partial: Path) -> Blob:
        """Store these bytes as a blob; `partial` is the folder of `open_for_writing`."""
        blob = Blob.of(content)
        if not self.blob_path(blob.digest).exists():
            file = partial / "content"
            file.write_bytes(content)
            self._keep(file, blob)
        return blob

    def put_file(self, source: Path, partial: Path) -> Blob:
        """Store a copy of the file as a blob.

        A hard link would let later changes of the file reach the blob. XFS and Btrfs share the
        blocks of a copy. Other file systems read the file once and hash it meanwhile. If a blob of
        that size exists, the file is hashed first.
        """
        size = source.stat().st_size
        if any(path.stat().st_size == size for path in self._blobs().iterdir()):
            there = Blob(f"sha256:{digest_file(source)}", size)
            if self.blob_path(there.digest).exists():
                return there
        file = partial / "content"
        if _clone(source, file):
            blob = Blob(f"sha256:{digest_file(file)}", file.stat().st_size)
        else:
            blob = copy_and_hash(source, file)
        self._keep(file, blob)
        return blob

    def copy_out(self, blob: Blob, destination: Path) -> None:
        """Write the blob to a new file.

        Raises:
            RegistryError: it is missing or damaged.
        """
        path = self.blob_path(blob.digest)
        try:
            copied = copy_and_hash(path, destination)
        except FileNotFoundError as error:
            raise _damaged_blob(path, "is missing") from error
        if copied.digest != blob.digest:
            raise _damaged_blob(path, "was changed")

    @contextmanager
    def open_for_writing(self) -> Iterator[Path]:
        """Yield a folder for incomplete blobs; remove those of killed processes.

        One process at a time writes blobs; aliases can move meanwhile.
        """
        from filelock import FileLock

        with FileLock(self.folder / ".blobs.lock", is_singleton=True):
            for left in self.folder.glob(".partial.*"):
                shutil.rmtree(left)
            partial = Path(tempfile.mkdtemp(prefix=".partial.", dir=self.folder))
            try:
                yield partial
            finally:
                shutil.rmtree(partial)

    def _keep(self, file: Path, blob: Blob) -> None:
        file.chmod(0o444)
        with file.open("rb") as content:
            os.fsync(content.fileno())
        file.replace(self.blob_path(blob.digest))
        flush_folder(self._blobs())

    def _blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"


def copy_and_hash(source: Path, destination: Path) -> Blob:
    """Copy a regular file in one pass; return its digest and size."""
    sha256, size = hashlib.sha256(), 0
    with open_regular(source, None) as reader, destination.open("wb") as writer:
        view = memoryview(bytearray(BLOCK_BYTES))
        while count := reader.readinto(view):
            sha256.update(view[:count])
            writer.write(view[:count])
            size += count
    return Blob(f"sha256:{sha256.hexdigest()}", size)


def _clone(source: Path, destination: Path) -> bool:
    """Copy with shared blocks; return False if the file system cannot."""
    with source.open("rb") as reader, destination.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError:  # another file system, or one that does not share blocks: copy
            return False
    return True


def _is_index(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("manifests"), list)
        and all(_is_descriptor(each) for each in value["manifests"])
        and isinstance(value.get("annotations", {}), dict)
    )


def _is_descriptor(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("digest"), str)
        and isinstance(value.get("size"), int)
        and isinstance(value.get("annotations", {}), dict)
    )


def _damaged_index(file: Path, reason: str) -> RegistryError:
    return RegistryError(
        f"the index of the OCI layout is damaged: {reason}",
        where=str(file),
        hint="restore a copy of it; the manifests that it lists are still in blobs/",
    )


def _damaged_blob(path: Path, what: str) -> RegistryError:
    return RegistryError(
        f"a blob of the OCI layout {what}",
        where=str(path),
        hint="restore a copy of it: a file of the model is copied from the store again, once this "
        "one is deleted, by `prepare promote RUN --if-current VERSION` with the run of the version",
    )

"""Small named values that several nodes share, in a directory or an object store.

The only requirements are an atomic `put_if_absent` and listings that show earlier writes. A
directory may therefore be on NFS, where `flock` may not work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import Protocol

from pipeline.core.fsync import flush_folder
from pipeline.core.private_files import is_shared, make_folder
from pipeline.core.untrusted.file import read_regular
from pipeline.core.untrusted.record import MAX_BYTES

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class KeyValueStore(Protocol):
    """Store whose names have the form `folder/name`; values have a few hundred bytes."""

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Store a complete value unless the name exists; return whether it was stored."""

    def put(self, name: str, content: bytes) -> None:
        """Store or replace a value; a reader may see a partial write."""

    def get(self, name: str) -> bytes | None:
        """Return the value; None if the name does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in the folder, without the folder's own name."""

    def remove(self, name: str) -> None:
        """Remove the name, if it exists."""

    def age(self, name: str) -> float | None:
        """Return the seconds since the last write, by the store's clock; None if absent."""


class FileKeyValueStore:
    """Key-value store in a shared directory; raises OSError on failure.

    Args:
        flush: flush each new value to disk; leases do not need it, since they end with their node.
    """

    def __init__(self, root: Path, *, flush: bool = False) -> None:
        self._root = root
        self._flush = flush

    def put_if_absent(self, name: str, content: bytes) -> bool:
        path = self._root / name
        for folder in (self._root.parent, self._root, path.parent):
            make_folder(folder)
        created = create_exclusively(path, content, flush=self._flush)
        if created and self._flush:
            flush_folder(path.parent)
        return created

    def put(self, name: str, content: bytes) -> None:
        """Implement KeyValueStore; do not recreate a removed folder."""
        _write_new(self._root / name, content, os.O_TRUNC, flush=False)

    def get(self, name: str) -> bytes | None:
        try:
            return read_regular(self._root / name, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        try:
            found = [path.name for path in (self._root / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in found if not name.startswith("."))

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def age(self, name: str) -> float | None:
        """Implement KeyValueStore; a new probe file gives the file server's time."""
        path = self._root / name
        probe = _temporary_path(path)
        try:
            _write_new(probe, b"", os.O_EXCL, flush=False)
            try:
                return probe.stat().st_mtime - path.stat().st_mtime
            finally:
                probe.unlink(missing_ok=True)
        except FileNotFoundError:
            return None


def create_exclusively(path: Path, content: bytes, *, flush: bool) -> bool:
    """Create a complete file unless it exists; return whether this call created it.

    A hard link to a complete file is created, so neither a reader nor a kill meets a partial file.

    Args:
        flush: wait until the content is on disk.
    """
    temporary = _temporary_path(path)
    try:
        _write_new(temporary, content, os.O_EXCL, flush=flush)
        # os.link reports NFS's response to a repeated request, which is checked below.
        os.link(temporary, path)
    except FileExistsError:
        # If NFS lost the first response, the repeated request reports our own file.
        return _is_same(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_links(path, content, flush=flush)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_without_links(path: Path, content: bytes, *, flush: bool) -> bool:
    """Do the same without hard links, where a kill may leave a partial file."""
    try:
        _write_new(path, content, os.O_EXCL, flush=flush)
    except FileExistsError:
        return False
    return True


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _write_new(path: Path, content: bytes, how: int, *, flush: bool) -> None:
    # The umask is global to the process, and heartbeats run in a thread: set the mode here.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if is_shared(path.parent):
            with contextlib.suppress(PermissionError):  # another user created it, with this mode
                os.fchmod(descriptor, 0o660)
        file.write(content)
        if flush:
            file.flush()
            os.fsync(file.fileno())

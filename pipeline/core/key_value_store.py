"""Small named things that several processes on several nodes share: a folder, or an object store.

All that is asked of a shelf is that of two who create one name only one can, and that whoever
lists a folder afterwards sees what was created. So it may lie on NFS, where `flock` may not work.
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
    """Names have the form `folder/name`; what is there is a few hundred bytes."""

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Put it there whole if nobody has put anything there yet; whether it is ours."""

    def put(self, name: str, content: bytes) -> None:
        """Put it there, whatever was there before; a reader may see half of it."""

    def get(self, name: str) -> bytes | None:
        """What is there; None where nothing is."""

    def names(self, folder: str) -> list[str]:
        """What lies in the folder, sorted, without the folder's own name."""

    def remove(self, name: str) -> None:
        """Take it away; no error where nothing is."""

    def age(self, name: str) -> float | None:
        """Seconds since it was put there, by the clock of whoever keeps the shelf."""


class FileKeyValueStore:
    """A shelf in a folder that others may have mounted; raises OSError where it fails.

    Args:
        flush: what is created is on disk at once; a claim ends with its node anyway.
    """

    def __init__(self, root: Path, *, flush: bool = False) -> None:
        self._root = root
        self._flush = flush

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """See Shelf."""
        path = self._root / name
        for folder in (self._root.parent, self._root, path.parent):
            make_folder(folder)
        created = create_exclusively(path, content, flush=self._flush)
        if created and self._flush:
            flush_folder(path.parent)
        return created

    def put(self, name: str, content: bytes) -> None:
        """See Shelf; a folder that is gone stays so."""
        _write_new(self._root / name, content, os.O_TRUNC, flush=False)

    def get(self, name: str) -> bytes | None:
        """See Shelf."""
        try:
            return read_regular(self._root / name, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """See Shelf."""
        try:
            found = [path.name for path in (self._root / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in found if not name.startswith("."))

    def remove(self, name: str) -> None:
        """See Shelf."""
        (self._root / name).unlink(missing_ok=True)

    def age(self, name: str) -> float | None:
        """See Shelf: a file that is written now tells what time the file server has."""
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
    """Make the file, whole, unless there is one; whether ours is there now.

    A hard link is made of a file that is whole: no reader and no kill meets half of it.

    Args:
        flush: wait until the disk has the content.
    """
    beside = _temporary_path(path)
    try:
        _write_new(beside, content, os.O_EXCL, flush=flush)
        # os.link, not Path: what NFS answers to a request that it got twice is looked into.
        os.link(beside, path)
    except FileExistsError:
        # Of a request whose first answer was lost NFS says that the name exists: it is ours.
        return _is_same(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_links(path, content, flush=flush)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _create_without_links(path: Path, content: bytes, *, flush: bool) -> bool:
    """The same on a file system that has no hard links, where a kill may leave half of it."""
    try:
        _write_new(path, content, os.O_EXCL, flush=flush)
    except FileExistsError:
        return False
    return True


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:  # it was there, and is gone
        return False


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _write_new(path: Path, content: bytes, how: int, *, flush: bool) -> None:
    # The mode is said here: the umask is the whole process's, and a claim beats in a thread.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if is_shared(path.parent):
            with contextlib.suppress(PermissionError):  # another made it, and has done so
                os.fchmod(descriptor, 0o660)
        file.write(content)
        if flush:
            file.flush()
            os.fsync(file.fileno())

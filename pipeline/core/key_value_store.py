"""Small records that are written once, by whichever process is first."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from pipeline.core.fsync import flush_folder
from pipeline.core.private_files import is_shared, make_folder
from pipeline.core.untrusted.file import read_regular
from pipeline.core.untrusted.record import MAX_BYTES

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class FileKeyValueStore:
    """Records in a shared directory, under names `folder/name`; raises OSError on failure."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Store a complete value unless the name exists; return whether it was stored."""
        path = self._root / name
        for folder in (self._root.parent, self._root, path.parent):
            make_folder(folder)
        created = create_exclusively(path, content)
        if created:
            flush_folder(path.parent)
        return created

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


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create a complete file unless it exists; return whether this call created it.

    A hard link to a complete file is created, so neither a reader nor a kill meets a partial file.
    """
    temporary = _temporary_path(path)
    try:
        _write_new(temporary, content)
        # os.link reports NFS's response to a repeated request, which is checked below.
        os.link(temporary, path)
    except FileExistsError:
        # If NFS lost the first response, the repeated request reports our own file.
        return _is_same(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_links(path, content)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_without_links(path: Path, content: bytes) -> bool:
    """Do the same without hard links, where a kill may leave a partial file."""
    try:
        _write_new(path, content)
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


def _write_new(path: Path, content: bytes) -> None:
    # The umask is global to the process, so the mode is set here.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if is_shared(path.parent):
            os.fchmod(descriptor, 0o660)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

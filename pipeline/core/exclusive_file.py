"""Durable files that are created once, by the first of several processes; standard library only."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from pipeline.core.private_files import is_shared


def flush_folder(folder: Path) -> None:
    """Flush the directory's entries to disk, but not the contents of its files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create a complete file durably unless it exists; return whether this call created it.

    A hard link is created, so neither a reader nor a kill meets a partial file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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
        if not _create_without_links(path, content):
            return False
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)
    return True


def _create_without_links(path: Path, content: bytes) -> bool:
    """Do the same on file systems without hard links; a kill may leave a partial file."""
    try:
        _write_new(path, content)
    except FileExistsError:
        return False
    return True


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # it was removed, or is a link to nothing
        return False


def _write_new(path: Path, content: bytes) -> None:
    # The umask is global to the process, so the mode is set here.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if is_shared(path.parent):
            os.fchmod(descriptor, 0o660)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

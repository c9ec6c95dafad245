"""Files and directories private to the user.

If its owner shared a directory with its group (`chmod 2770`), the group may change everything, but
not in directories below.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SHARED = stat.S_ISGID | stat.S_IRWXG


def masked_permissions(folder: Path) -> int:
    """Return permission bits that new files must not have."""
    return stat.S_IRWXO if is_shared(folder) else FOR_OTHERS


def is_shared(folder: Path) -> bool:
    """Return whether the folder is shared with its group."""
    try:
        return folder.stat().st_mode & _SHARED == _SHARED
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def private_umask(folder: Path | None = None) -> Iterator[None]:
    """Create private files; the group's if the folder is shared."""
    before = os.umask(masked_permissions(folder) if folder is not None else FOR_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def unwritable_umask() -> Iterator[None]:
    """Create files that other users cannot write to."""
    before = os.umask(FOR_OTHERS)
    os.umask(before | _FOR_OTHERS_TO_WRITE)
    try:
        yield
    finally:
        os.umask(before)


def untrusted_reason(*folders: Path) -> str:
    """Return why another user may have written there, or ''."""
    for folder in folders:
        try:
            link = folder.lstat()
            facts = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if strangers := {link.st_uid, facts.st_uid} - {0, os.geteuid()}:
            return f"{folder} belongs to another user, number {min(strangers)}"
        if facts.st_mode & _FOR_OTHERS_TO_WRITE:
            return f"other users may write to {folder}"
    return ""


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append; OSError unless it is a regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with private_umask(path.parent):
        descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "ab")


def make_private(folder: Path) -> None:
    """Create a private folder, or make one private.

    PermissionError: another user owns it, and it is open to others.
    """
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if wrongly := mode & masked_permissions(folder):
        folder.chmod(mode & ~wrongly)


def make_folder(folder: Path) -> None:
    """Create one folder with its parent's sharing."""
    withheld = masked_permissions(folder.parent)
    try:
        folder.mkdir(mode=0o777 & ~withheld)
    except FileExistsError:
        return
    if withheld != FOR_OTHERS:
        folder.chmod(_SHARED | stat.S_IRWXU)


def share_with_group(folder: Path) -> None:
    """Give the group the owner's rights on our files below, and others none.

    Libraries create files with explicit modes, which the umask does not cover.
    """
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        wanted = (status.st_mode | (status.st_mode & stat.S_IRWXU) >> 3) & ~stat.S_IRWXO
        if not stat.S_ISLNK(status.st_mode) and wanted != status.st_mode:
            with suppress(PermissionError):  # owned by another user
                path.chmod(stat.S_IMODE(wanted))


def flush_folder(folder: Path) -> None:
    """Flush the directory's entries only."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remember(marker: Path) -> None:
    """Create a cache's empty file, unless its folder is read-only, as in an image."""
    with suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create a complete file durably; return whether this call created it.

    Readers never see a partial file.
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
        try:  # without hard links; a kill may leave a partial file
            _write_new(path, content)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)
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


def write_atomically(path: Path, text: str, *, is_private: bool = True) -> None:
    """Replace `path` by a flushed file; else with the permissions of the user's umask."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with private_umask(path.parent) if is_private else nullcontext():
        opened = temporary.open("w", encoding="utf-8")
    with opened as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def flush_to_disk(folder: Path) -> None:
    """Flush every file and directory below to disk."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        elif path.is_dir():
            flush_folder(path)
    flush_folder(folder)

"""Files and folders that nobody else may read: questions, answers and weights may be private.

A folder whose owner has shared it with its group (`chmod 2770`: the group may write, and what is
made in it is the group's, too) is the exception: what is made in it the whole group may read,
change and remove. Nothing is shared because something above it is: that is said of one folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SHARED = stat.S_ISGID | stat.S_IRWXG


def masked_permissions(folder: Path) -> int:
    """The permission bits that nothing has which is made in that folder."""
    return stat.S_IRWXO if is_shared(folder) else FOR_OTHERS


def is_shared(folder: Path) -> bool:
    """Whether the folder was shared with its group; one that is not there was not."""
    try:
        return folder.stat().st_mode & _SHARED == _SHARED
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def private_umask(folder: Path | None = None) -> Iterator[None]:
    """What is made meanwhile is 0700 or 0600; the group's, too, where the folder is shared."""
    before = os.umask(masked_permissions(folder) if folder is not None else FOR_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def unwritable_umask() -> Iterator[None]:
    """Create files and folders that other users may not write to, whatever the umask."""
    before = os.umask(FOR_OTHERS)
    os.umask(before | _FOR_OTHERS_TO_WRITE)
    try:
        yield
    finally:
        os.umask(before)


def untrusted_reason(*folders: Path) -> str:
    """Return why another user may have put something there; '' if none may, or nothing is there.

    Trusted are folders that root or this user owns, and that no other user may write to.
    """
    for folder in folders:
        try:
            link, facts = folder.lstat(), folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if strangers := {link.st_uid, facts.st_uid} - {0, os.geteuid()}:
            return f"{folder} belongs to another user, number {min(strangers)}"
        if facts.st_mode & _FOR_OTHERS_TO_WRITE:
            return f"other users may write to {folder}"
    return ""


def open_log(path: Path) -> IO[bytes]:
    """Open the file to append to it; a new one is for the users who may read its folder.

    Raises:
        OSError: it is a link or no regular file, or it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with private_umask(path.parent):
        descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "ab")


def make_private(folder: Path) -> None:
    """Make the folder ours alone, or take others' rights from one that is there.

    Raises:
        PermissionError: it is another user's, and open to others.
        OSError: it cannot be made.
    """
    with private_umask():
        folder.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if wrongly := mode & masked_permissions(folder):
        folder.chmod(mode & ~wrongly)


def make_folder(folder: Path) -> None:
    """Make the folder in one that is there, with the rights that this says, whatever the umask."""
    withheld = masked_permissions(folder.parent)
    try:
        folder.mkdir(mode=0o777 & ~withheld)
    except FileExistsError:
        return
    if withheld != FOR_OTHERS:
        folder.chmod(_SHARED | stat.S_IRWXU)


def share_with_group(folder: Path) -> None:
    """Give the group what the owner may, and others nothing, of all below that is ours.

    The umask does so, but for what libraries make with rights of their own choice.
    """
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        wanted = (found.st_mode | (found.st_mode & stat.S_IRWXU) >> 3) & ~stat.S_IRWXO
        if not stat.S_ISLNK(found.st_mode) and wanted != found.st_mode:
            with suppress(PermissionError):  # another's, who had it before us
                path.chmod(stat.S_IMODE(wanted))

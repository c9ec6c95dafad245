"""Opens files that others wrote: regular ones alone, up to a size, and without ever waiting.

A checkpoint, a bundle, a registry's folder or a data file may hold a named pipe, on which an
ordinary `open` waits for ever, a link to /dev/zero, which has no end, or 60 GB instead of a
manifest. Everything that is not ours is opened here.

Standard library only: workers and suites read with it too.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

MEBIBYTE = 2**20
MAX_NAMES = 20_000  # in one folder

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UntrustedFileError(OSError):
    """A file that is not read for what it is: no regular file, too large, or no possible path.

    An OSError, and its `strerror` is the reason, so whoever says that a file cannot be read says
    this as well.
    """


def open_regular(path: Path, limit: int | None) -> FileIO:
    """Open a foreign file for reading, unbuffered; links are followed.

    Args:
        limit: the most bytes that it may have now; None for any, as of weights. Whoever reads to
            the end of a file that may grow meanwhile counts for himself, or takes `read_regular`.

    Raises:
        UntrustedFileError: it is no regular file, larger than that, or the path has a NUL in it.
        OSError: it is not there, may not be read, or its links lead in a circle.
    """
    try:
        _check(Path(path).stat(), path, limit)  # before opening: to open a device can do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise UntrustedFileError(errno.EINVAL, "no file can have this path", str(path)) from error
    try:
        _check(os.fstat(descriptor), path, limit)  # and after: another may lie there by now
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a foreign file, which may have `limit` bytes at most."""
    with open_regular(path, limit) as file:
        parts, left = [], limit + 1
        while left and (part := file.read(min(left, 16 * MEBIBYTE))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise _size_error(path, limit)
    return b"".join(parts)


def list_names(folder: Path) -> list[str]:
    """Names of what lies in a foreign folder, sorted.

    Raises:
        UntrustedFileError: more than MAX_NAMES do.
        OSError: it is no folder, or may not be read.
    """
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > MAX_NAMES:
                raise UntrustedFileError(
                    errno.EFBIG, f"more than {MAX_NAMES:,} files lie in it, the limit", str(folder)
                )
    return sorted(names)


def _check(status: os.stat_result, path: Path, limit: int | None) -> None:
    for is_kind, words in _KINDS:
        if is_kind(status.st_mode):
            raise UntrustedFileError(errno.EINVAL, f"it is {words}, not a file", str(path))
    if limit is not None and status.st_size > limit:
        raise _size_error(path, limit)


def _size_error(path: Path, limit: int) -> UntrustedFileError:
    size = f"{limit / MEBIBYTE:g} MiB" if limit >= MEBIBYTE else f"{limit} bytes"
    return UntrustedFileError(errno.EFBIG, f"it is larger than {size}, the limit", str(path))

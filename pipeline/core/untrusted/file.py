"""Bounded access to untrusted files: regular files only, up to a size limit, without blocking.

A checkpoint, bundle, registry or data directory may contain a named pipe, which blocks `open`, a
link to the endless /dev/zero, or 60 GB instead of a manifest.

Standard library only: workers and suites import this module.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

MEBIBYTE = 2**20
MAX_NAMES = 20_000  # in one directory

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UntrustedFileError(OSError):
    """A file that is not regular, too large, or has an impossible path.

    It is an OSError whose `strerror` is the reason, so generic handlers report it.
    """


def open_regular(path: Path, limit: int | None) -> FileIO:
    """Open an untrusted file unbuffered for reading; follow links.

    Args:
        limit: maximum size in bytes at opening; None for any, as for weights. A growing file needs
        `read_regular`, or a count by the caller.

    Raises:
        UntrustedFileError: it is not regular, too large, or its path has a NUL.
        OSError: it does not exist, is not readable, or its links form a loop.
    """
    try:
        _check(Path(path).stat(), path, limit)  # opening a device can have effects
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL or an unpaired surrogate
        raise UntrustedFileError(errno.EINVAL, "the path is impossible", str(path)) from error
    try:
        _check(os.fstat(descriptor), path, limit)  # it may have been replaced
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of an untrusted file with at most `limit` bytes."""
    with open_regular(path, limit) as file:
        parts, left = [], limit + 1
        while left and (part := file.read(min(left, 16 * MEBIBYTE))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise _size_error(path, limit)
    return b"".join(parts)


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in an untrusted directory.

    Raises:
        UntrustedFileError: it has more than MAX_NAMES entries.
        OSError: it is not a readable directory.
    """
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > MAX_NAMES:
                raise UntrustedFileError(
                    errno.EFBIG, f"more than {MAX_NAMES:,} files are in it, the limit", str(folder)
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

"""Locks of one node, across processes and users, which end with their holder.

A lock is a file in a directory that every user can write to, never in a home directory, which nodes
may share. `flock` holds it, so the kernel releases it when the last process with the descriptor
ends. The files stay empty and are opened read-only: in a sticky directory the kernel refuses
O_CREAT on another user's file (`fs.protected_regular`).

Runs in containers share locks only if they share the directory that $PREPARE_NODE_LOCKS names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import UsageError

FOLDERS = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))  # noqa: S108
FOLDER_VARIABLE = "PREPARE_NODE_LOCKS"
FOR_ALL = stat.S_ISVTX | stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
RESERVATION_S = 3.0  # validity; a waiting process renews it earlier


class NodeLocks:
    """The locks of this node.

    Args:
        folder: lock directory; None for the one that all users share.

    Raises:
        UsageError: $PREPARE_NODE_LOCKS is not a writable directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or lock_folder()

    def try_acquire(self, name: str, *, shared: bool = False) -> int | None:
        """Acquire the lock without waiting.

        Returns:
            a descriptor; the lock is held until it and all its copies in any process are closed.
                None
            if another process has the lock.

        Raises:
            UsageError: the lock's path is not a regular file.
        """
        path = self._path(name)
        while True:
            descriptor = self._open(path)
            try:
                fcntl.flock(
                    descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
                )
                if _is_file(path, descriptor):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # the file was removed, so others cannot see this lock

    def reserve(self, name: str) -> None:
        """Reserve the lock, so that a stream of small users does not starve this one.

        The reservation lasts RESERVATION_S for all users; a waiting process renews it.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError):  # without it the wait may only be longer
            descriptor = os.open(self._reservation_path(name, os.getuid()), flags, 0o600)
            os.utime(descriptor)
            os.close(descriptor)

    def cancel_reservation(self, name: str) -> None:
        """Cancel this user's reservation; another waiting run renews it."""
        with contextlib.suppress(OSError):
            self._reservation_path(name, os.getuid()).unlink()

    def is_reserved(self, name: str) -> bool:
        return any(
            abs(time.time() - seconds) < RESERVATION_S
            for path in self.folder.glob(self._reservation_path(name, "*").name)
            for seconds in _modified(path)
        )

    def _path(self, name: str) -> Path:
        return self.folder / f"prepare.{name.replace('/', '_')}.lock"

    def _reservation_path(self, name: str, user: int | str) -> Path:
        return self.folder / f"prepare.{name}.reserved.{user}"

    def _open(self, path: Path) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with self._explain_errors(path):
            while True:
                try:
                    descriptor = os.open(path, flags)
                except FileNotFoundError:
                    self._make(path)
                    continue
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return descriptor
                os.close(descriptor)
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))

    def _make(self, path: Path) -> None:
        temporary, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=self.folder)
        try:
            os.fchmod(temporary, 0o444)
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            os.close(temporary)
            Path(name).unlink()

    @contextlib.contextmanager
    def _explain_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"a lock of this node cannot be used: {error.strerror}",
                where=str(path),
                hint=f"remove it, or set {FOLDER_VARIABLE} to a directory that all users of this "
                "node can write to",
            ) from error


def lock_folder() -> Path:
    """Return the node's lock directory; raise UsageError as NodeLocks does."""
    if named := os.environ.get(FOLDER_VARIABLE):
        if os.access(named, os.W_OK | os.X_OK) and Path(named).is_dir():
            return Path(named)
        raise UsageError(
            f"{FOLDER_VARIABLE} is not a writable directory",
            where=f"{FOLDER_VARIABLE}={named}",
            hint="create the directory with `mkdir -m 1777`, or unset the variable",
        )
    shared = (folder for folder in FOLDERS if _is_for_all(folder))
    return next(shared, Path(tempfile.gettempdir()))


def _is_for_all(folder: Path) -> bool:
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return False
    return mode & FOR_ALL == FOR_ALL and os.access(folder, os.W_OK)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _modified(path: Path) -> Iterator[float]:
    with contextlib.suppress(OSError):
        yield path.stat().st_mtime

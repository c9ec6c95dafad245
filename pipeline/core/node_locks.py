"""Locks of this node, which hold across processes and users, and end with whoever holds them.

A lock is a file in a folder of the node that every user may write into, never in a home, which
nodes may share; `flock` holds it, so the kernel frees it when the last process that has its
descriptor is gone, however it went. Nothing is ever written into such a file, so everybody opens it
for reading only: in a sticky folder the kernel refuses to open another user's file with O_CREAT
(`fs.protected_regular`), and a lock needs no more.

Runs in containers see each other only where they share that folder: $PREPARE_NODE_LOCKS names one.
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
RESERVATION_S = 3.0  # that a wish counts; whoever still has it says so more often


class NodeLocks:
    """The locks of this node.

    Args:
        folder: where they lie; None for the one that all users of the node agree on.

    Raises:
        UsageError: $PREPARE_NODE_LOCKS names no folder that can be written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or lock_folder()

    def try_acquire(self, name: str, *, shared: bool = False) -> int | None:
        """Take the lock now, or find that another has it.

        Returns:
            a descriptor: the lock is held until it and all its copies, in whatever process, are
            closed. None where another has the lock.

        Raises:
            UsageError: something that is no lock lies in its place.
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
            os.close(descriptor)  # somebody tidied the folder meanwhile: nobody else will see ours

    def reserve(self, name: str) -> None:
        """Say that we wait for something that many small takers would keep us from for ever.

        It counts for WISH_SECONDS, for all users; whoever still waits says it again.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError):  # without it we only may wait longer
            descriptor = os.open(self._reservation_path(name, os.getuid()), flags, 0o600)
            os.utime(descriptor)
            os.close(descriptor)

    def cancel_reservation(self, name: str) -> None:
        """Take back what this user wishes; who of their runs still waits says it again."""
        with contextlib.suppress(OSError):
            self._reservation_path(name, os.getuid()).unlink()

    def is_reserved(self, name: str) -> bool:
        """Whether somebody waits so, of whatever process and user."""
        return any(
            abs(time.time() - seconds) < RESERVATION_S
            for path in self.folder.glob(self._reservation_path(name, "*").name)
            for seconds in _modified(path)
        )

    def _path(self, name: str) -> Path:
        return self.folder / f"prepare.{name.replace('/', '_')}.lock"

    def _reservation_path(self, name: str, user: int | str) -> Path:
        return self.folder / f"prepare.{name}.wished.{user}"

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
                raise OSError(errno.EINVAL, "it is no file", str(path))

    def _make(self, path: Path) -> None:
        """Make the file under its name at once with rights for all, whatever the umask."""
        beside, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=self.folder)
        try:
            os.fchmod(beside, 0o444)
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            os.close(beside)
            Path(name).unlink()

    @contextlib.contextmanager
    def _explain_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"a lock of this node cannot be used: {error.strerror}",
                where=str(path),
                cure=f"remove what lies there, or name a folder that all users of this node may "
                f"write into by the variable {FOLDER_VARIABLE}",
            ) from error


def lock_folder() -> Path:
    """The folder of the node's locks, the same for all users; raises UsageError as NodeLocks."""
    if named := os.environ.get(FOLDER_VARIABLE):
        if os.access(named, os.W_OK | os.X_OK) and Path(named).is_dir():
            return Path(named)
        raise UsageError(
            f"{FOLDER_VARIABLE} names no folder that can be written",
            where=f"{FOLDER_VARIABLE}={named}",
            cure="make the folder with `mkdir -m 1777`, or unset the variable",
        )
    shared = (folder for folder in FOLDERS if _is_for_all(folder))
    return next(shared, Path(tempfile.gettempdir()))


def _is_for_all(folder: Path) -> bool:
    """Whether all users may write there, and none may remove what is another's."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return False
    return mode & FOR_ALL == FOR_ALL and os.access(folder, os.W_OK)


def _is_file(path: Path, descriptor: int) -> bool:
    """Whether that is the file under the name now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _modified(path: Path) -> Iterator[float]:
    with contextlib.suppress(OSError):
        yield path.stat().st_mtime

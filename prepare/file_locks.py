"""Locks on files of a store, held by `flock` until their last holder ends.

Children with the descriptor hold the lock too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import pwd
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from prepare.errors import StoreError
from prepare.private_files import is_shared, make_folder

PRIVATE = 0o600
SHARED = 0o660
_HOLDER_BYTES = 500
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
LOCAL_ONLY = ("localflock", "nolock", "local_lock=all", "local_lock=flock")

_held: set[int] = set()
_guard = threading.Lock()
_work: list[tuple[str, str, str]] = []
"""This process's work, when it began, and a remark: for the messages of waiting processes."""
Waits = Callable[[str], None]


def held_descriptors() -> list[int]:
    """Return the locks that children hold too."""
    with _guard:
        return sorted(_held)


@contextmanager
def hold_for_children(descriptor: int) -> Iterator[None]:
    """Let new children hold the lock too."""
    with _guard:
        _held.add(descriptor)
    try:
        yield
    finally:
        with _guard:
            _held.discard(descriptor)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Describe this process's work to waiting processes."""
    _work.append((what, datetime.now(UTC).strftime("%H:%M UTC"), ""))
    try:
        yield
    finally:
        _work.pop()


def remark_on_work(remark: str) -> None:
    """Add a remark to the description of this process's outermost work."""
    if _work:
        what, since, _ = _work[0]
        _work[0] = (what, since, f" ({remark})")


def this_process() -> str:
    """Describe this process by work, user, id and machine."""
    outer_and_inner = [*_work[:1], *_work[1:][-1:]]
    works = [f"{what} since {since}{remark}" for what, since, remark in outer_and_inner]
    return ", ".join(
        [*works, f"process {os.getpid()} of {user_name(os.getuid())} on {platform.node()}"]
    )


def holder_of(path: Path) -> str:
    """Return the holder's description; '' if the lock is free."""
    if not is_locked(path):
        return ""
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags), "rb") as file:
            return _read_holder(file.fileno())
    return "another process"


@contextmanager
def locked(
    path: Path,
    on_wait: Waits = lambda text: None,
    *,
    shared: bool = False,
    wait: bool = True,
    is_inherited: bool = True,
) -> Iterator[bool]:
    """Hold the lock; yield whether it is held, as with `wait`.

    With `is_inherited`, children that start meanwhile hold it too. StoreError: the file system has
    no locks.
    """
    descriptor = _open(path)
    try:
        is_held = _lock(descriptor, path, on_wait, shared=shared, wait=wait)
        if not is_held:
            yield False
            return
        with hold_for_children(descriptor) if is_inherited else contextlib.nullcontext():
            yield True
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | flags)
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # no lock is taken through a link
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # NFS locks nothing alone that is open to read: who may not write sees no lock
        return False
    finally:
        os.close(descriptor)
    return False


def refuse_local_locks(folder: Path, mounts: str | None = None) -> None:
    """Refuse a file system whose locks others do not see.

    `mounts` is the text of /proc/self/mountinfo.
    """
    mount = find_mount(folder, mounts)
    if mount is None:
        return
    place, kind, options = mount
    local = next((option for option in options if option in LOCAL_ONLY), "")
    if kind == "fuse" or kind.startswith("fuse."):
        fault = f"the file system {kind} may keep no locks"
        cure = "use ext4, xfs, NFSv4 or Lustre"
    elif local:
        fault = f"it is mounted with {local}"
        cure = f"mount it without {local} (Lustre: flock)"
    else:
        return
    raise StoreError(
        f"the store's folder has no locks between machines: {fault}",
        where=f"{folder}, mounted at {place}",
        hint=f"{cure}; or, if locks work there, write 'store_locks: trusted' into the settings",
    )


def find_mount(folder: Path, mounts: str | None = None) -> tuple[str, str, list[str]] | None:
    """Return the file system's mount point, type and options."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return None
    wanted = folder.absolute().resolve()
    best = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        kinds = after.split()
        if len(fields) < 6 or len(kinds) < 3:
            continue
        place = fields[4].encode().decode("unicode_escape")
        if wanted.is_relative_to(place) and (best is None or len(place) >= len(best[0])):
            best = place, kinds[0], [*fields[5].split(","), *kinds[2].split(",")]
    return best


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    make_folder(path.parent)
    mode = SHARED if is_shared(path.parent) else PRIVATE
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags)
    except FileNotFoundError as error:
        why = "its folder is a link to nothing" if path.parent.is_symlink() else "no such folder"
        raise NotADirectoryError(errno.ENOTDIR, why, str(path.parent)) from error
    os.fchmod(descriptor, mode)
    return descriptor


def _lock(descriptor: int, path: Path, on_wait: Waits, *, shared: bool, wait: bool) -> bool:
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
            on_wait(f"waiting for {_read_holder(descriptor)}")
            fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise StoreError(
            f"this file system has no locks (flock): {error.strerror}",
            where=str(path),
            hint="mount it with locks (Lustre: the option flock), or use another folder: "
            "--store DIR for the store, PREPARE_HOME for environments",
        ) from error
    if not shared:
        with contextlib.suppress(OSError):  # a full disk; the name is for messages alone
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, this_process().encode()[:_HOLDER_BYTES], 0)
    return True


def _read_holder(descriptor: int) -> str:
    told = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
    return told if told.isprintable() and told else "another process"


def user_name(number: int) -> str:
    """Return a user's name; a container may have none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"

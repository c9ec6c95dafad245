"""System calls that `os` does not offer in every supported Python."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

from eval_gates.sandbox import seccomp_filter

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
MNT_DETACH = 2

_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 21, 22, 2
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CAPABILITY_VERSION_3 = 0x2008_0522
_CAPABILITIES = 64

_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1

_libc = ctypes.CDLL(None, use_errno=True)
_STEP_BYTES = 8


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]


def unshare(flags: int) -> None:
    """Move this process (for the pid namespace: its children) into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system."""
    strings = [value.encode() or None for value in (source, target, kind)]
    result = _libc.mount(*strings, ctypes.c_ulong(flags), data.encode() or None)
    _check(result, f"mount {target}")


def detach(target: str) -> None:
    """Unmount `target` and everything under it."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root folder; the former one appears at `old`."""
    _check(_libc.pivot_root(new.encode(), old.encode()), "pivot_root")


def make_read_only(target: str) -> None:
    """Make the mounts at and under `target` read-only, without setuid (Linux 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        target.encode(),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"mount_setattr {target}")


def set_host_name(name: str) -> None:
    """Set the host name of this UTS namespace."""
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of orphaned descendants, or stop that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def forbid_tracing() -> None:
    """Forbid the user's other processes to trace this one or read its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def shed_privileges(users: list[int]) -> None:
    """Become the first of `users` that exists here, without any capability, permanently.

    The current user stays if `users` is empty.
    """
    for capability in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # beyond the last one, or without any capability
    if users:
        _become(users)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    forbid_tracing()


def filter_calls() -> None:
    """Refuse the system calls of :mod:`.seccomp_filter` to this process and its children.

    No effect on other architectures or without kernel support. Call :func:`shed_privileges` first.
    """
    if os.uname().machine != seccomp_filter.MACHINE or _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return
    steps = ctypes.create_string_buffer(seccomp_filter.program())
    length = (len(steps) - 1) // _STEP_BYTES
    header = _Filter(length, ctypes.addressof(steps))
    result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0)
    _check(result, "the filter of system calls")


def leave_session_keyring() -> None:
    """Take an empty session keyring, if this process may have a keyring."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _JOIN_SESSION_KEYRING, None, 0, 0, 0)


def _become(users: list[int]) -> None:
    with suppress(PermissionError):  # forbidden in an ordinary user's namespace
        os.setgroups([])
    for user in users:
        try:
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError:
            if user == users[-1]:
                raise
        else:
            return


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")

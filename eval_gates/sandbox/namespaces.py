"""Isolation by Linux namespaces alone, without privileges.

A child moves into new user, mount, pid, network, IPC, UTS and cgroup namespaces. Its own child is
pid 1 there, builds a root folder, and becomes the sandbox's init.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from eval_gates.sandbox import cgroup, linux_syscalls

NOBODY = 65_534
HOST_NAME = "sandbox"
TEMPORARY_BYTES = 16 * 2**20
_TEMPORARY_FILES = 1_024
# Not zero: memory of a shared map of it stays when no process maps its pages.
DEVICES = ("null", "full", "random", "urandom")

_ALL = (
    linux_syscalls.CLONE_NEWUSER
    | linux_syscalls.CLONE_NEWNS
    | linux_syscalls.CLONE_NEWPID
    | linux_syscalls.CLONE_NEWNET
    | linux_syscalls.CLONE_NEWIPC
    | linux_syscalls.CLONE_NEWUTS
    | linux_syscalls.CLONE_NEWCGROUP
)


def unused_user_id() -> int:
    """Return a user id without files or processes: the process limit exempts root."""
    return 2_000_000_000 + os.getpid()


def launch(
    view: dict[str, Any],
    *,
    proc: bool,
    group: str,
    run_init: Callable[[], NoReturn],
    fail: Callable[[str], None],
) -> int:
    """Start `run_init` as pid 1 of new namespaces; the returned process ends with their last.

    Args:
        view: :meth:`FilesystemView.as_dict`, the root folder.
        proc: whether to mount a /proc, which a container may not allow.
        run_init: runs inside with its privileges, which it must shed.
        fail: receives, in the failed process, why the namespaces could not be made.
    """
    moved, tell_moved = os.pipe()
    mapped, tell_mapped = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(moved)
        os.close(tell_mapped)

        def move() -> None:
            cgroup.enter(group)
            _enter_namespaces(view, proc, tell_moved, mapped, run_init, fail)

        _try_or_fail(move, fail)
    os.close(tell_moved)
    os.close(mapped)
    try:
        if os.read(moved, 1):  # otherwise it failed, and has reported it
            _map_users(child)
            os.write(tell_mapped, b"m")
    finally:
        os.close(moved)
        os.close(tell_mapped)
    return child


def _try_or_fail(act: Callable[[], None], fail: Callable[[str], None]) -> NoReturn:
    try:
        act()
    except BaseException as error:
        fail(f"{type(error).__name__}: {error}")
    os._exit(1)


def _enter_namespaces(
    view: dict[str, Any],
    proc: bool,
    tell_moved: int,
    mapped: int,
    run_init: Callable[[], NoReturn],
    fail: Callable[[str], None],
) -> None:
    linux_syscalls.unshare(_ALL)
    os.write(tell_moved, b"m")
    if not os.read(mapped, 1):
        raise OSError("the users of the namespace could not be mapped")
    os.close(tell_moved)
    os.close(mapped)
    first = os.fork()
    if first == 0:
        _try_or_fail(lambda: _enter_root(view, proc, run_init), fail)
    os.closerange(0, 1024)  # the pipes must end with the processes inside
    os.waitpid(first, 0)
    os._exit(0)


def _enter_root(view: dict[str, Any], proc: bool, run_init: Callable[[], NoReturn]) -> None:
    with suppress(PermissionError):  # Podman's containers forbid this alone
        linux_syscalls.set_host_name(HOST_NAME)
    build_root(view, proc=proc)
    run_init()


def _map_users(child: int) -> None:
    folder = Path(f"/proc/{child}")
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        for stand_in in (unused_user_id(), NOBODY):
            # Root's id is mapped too, for root's permissions until they are shed.
            with suppress(PermissionError):  # that id does not exist in this container
                (folder / "gid_map").write_text(f"0 {group} 1\n{NOBODY} {stand_in} 1\n")
                (folder / "uid_map").write_text(f"0 0 1\n{NOBODY} {stand_in} 1\n")
                return
    (folder / "setgroups").write_text("deny")
    (folder / "gid_map").write_text(f"{NOBODY} {group} 1\n")
    (folder / "uid_map").write_text(f"{NOBODY} {user} 1\n")


def build_root(view: dict[str, Any], *, proc: bool) -> None:
    """Build and enter a read-only root in memory that shows `view`."""
    # A stricter umask would close these folders to the program.
    os.umask(0o022)
    linux_syscalls.mount("", "/", flags=linux_syscalls.MS_REC | linux_syscalls.MS_PRIVATE)
    linux_syscalls.mount(
        "tmpfs",
        "/tmp",  # noqa: S108
        "tmpfs",
        linux_syscalls.MS_NOSUID | linux_syscalls.MS_NODEV,
        "size=1m,mode=755",
    )
    Path("/tmp/.outside").mkdir()  # noqa: S108
    linux_syscalls.pivot_root("/tmp", "/tmp/.outside")  # noqa: S108
    os.chdir("/")
    for folder in ("/tmp", "/dev", "/proc"):  # noqa: S108
        Path(folder).mkdir()
    for source, target in view["binds"]:
        _bind(source, target)
    for target, link in view["links"]:
        Path(link).symlink_to(target)
    for device in DEVICES:
        _bind(f"/dev/{device}", f"/dev/{device}")
    for folder in view["masks"]:
        linux_syscalls.mount("tmpfs", folder, "tmpfs", data="size=0,nr_inodes=1,mode=555")
    if proc:
        _mount_proc()
    linux_syscalls.detach("/.outside")
    Path("/.outside").rmdir()
    linux_syscalls.make_read_only("/")
    linux_syscalls.mount(
        "tmpfs",
        "/tmp",  # noqa: S108
        "tmpfs",
        linux_syscalls.MS_NOSUID | linux_syscalls.MS_NODEV,
        f"size={TEMPORARY_BYTES},nr_inodes={_TEMPORARY_FILES},mode=1777",
    )
    os.chdir("/tmp")  # noqa: S108


def _bind(source: str, target: str) -> None:
    outside = Path(f"/.outside{source}")
    place = Path(target)
    if outside.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    linux_syscalls.mount(str(outside), target, flags=linux_syscalls.MS_BIND | linux_syscalls.MS_REC)


def _mount_proc() -> None:
    """Mount this pid namespace's /proc; forbid nested namespaces and shared memory."""
    flags = linux_syscalls.MS_NOSUID | linux_syscalls.MS_NODEV | linux_syscalls.MS_NOEXEC
    linux_syscalls.mount("proc", "/proc", "proc", flags)
    for limit in ("user/max_user_namespaces", "kernel/shmmni", "kernel/msgmni"):
        # Older kernels have no such limits for a namespace.
        with suppress(PermissionError, FileNotFoundError):
            Path("/proc/sys", limit).write_text("0")

"""Isolation by bubblewrap (`bwrap`), which some systems allow without other namespaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eval_gates.sandbox import cgroup
from eval_gates.sandbox.namespaces import DEVICES, HOST_NAME, NOBODY, TEMPORARY_BYTES

_CODE_FOLDER = "/sandbox"
# Imported by name inside, where bubblewrap mounts our source.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eval_gates.sandbox.sandbox_init import keep; keep(*map(int, sys.argv[2:]))"
)


def command(
    program: str,
    view: dict[str, Any],
    code_folder: str,
    ends: Iterable[int],
    *,
    proc: bool,
    host_named: bool,
    user_namespace: bool,
    nested_forbidden: bool,
) -> list[str]:
    """Return the command line that starts a sandbox init in bubblewrap.

    Args:
        view: :meth:`FilesystemView.as_dict`.
        code_folder: the folder that contains `eval_gates`.
        ends: the init's descriptors, in its order.
        user_namespace: False for root; the init then keeps the capabilities to change its user.
    """
    line = [program, "--die-with-parent", "--as-pid-1", "--new-session"]
    line += ["--hostname", HOST_NAME] if host_named else []
    line += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--cap-drop", "ALL"]
    if user_namespace:
        line += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        line += ["--disable-userns"] if nested_forbidden else []
    else:
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            line += ["--cap-add", f"CAP_{capability}"]
    for source, target in view["binds"]:
        for folder in reversed(Path(target).parents[:-1]):  # by default bubblewrap makes them 0700
            line += ["--perms", "0755", "--dir", str(folder)]
        line += ["--ro-bind", source, target]
    for target, link in view["links"]:
        line += ["--symlink", target, link]
    for folder in view["masks"]:
        line += ["--tmpfs", folder, "--remount-ro", folder]
    line += ["--perms", "0755", "--dir", "/dev"]
    line += ["--perms", "0755", "--dir", _CODE_FOLDER]
    line += ["--perms", "0755", "--dir", f"{_CODE_FOLDER}/eval_gates"]
    line += ["--ro-bind", f"{code_folder}/eval_gates/sandbox", f"{_CODE_FOLDER}/eval_gates/sandbox"]
    for device in DEVICES:
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    line += ["--proc", "/proc"] if proc else []
    line += ["--perms", "1777", "--size", str(TEMPORARY_BYTES), "--tmpfs", "/tmp"]  # noqa: S108
    line += ["--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108
    return [*line, "--", view["interpreter"], "-sPS", "-c", _START, _CODE_FOLDER, *map(str, ends)]


def launch(line: list[str], ends: Iterable[int], group: str) -> int:
    """Start bubblewrap; it ends with the last process inside."""
    for end in ends:
        os.set_inheritable(end, True)
    child = os.fork()
    if child:
        return child
    try:
        cgroup.enter(group)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.execve(line[0], line, dict(os.environ))  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{line[0]}: {error}\n")
        sys.stderr.flush()
    os._exit(1)

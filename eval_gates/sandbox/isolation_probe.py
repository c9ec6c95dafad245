"""Finds the isolation that works on this machine, by a probe program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

from eval_gates.sandbox import cgroup
from eval_gates.sandbox.execution import PROCESSES, Execution, Program, run_program
from eval_gates.sandbox.isolation import NONE, Isolation, SandboxError

Wanted = Literal["auto", "bubblewrap", "namespaces", "none"]

_SECONDS = 20.0
_MEMORY_BYTES = 512 * 2**20
_NESTED_FORBIDDEN_SINCE = (0, 8)

# Looks around like a malicious program. Its result is trusted, because the code is ours.
_LOOK = """
import os, socket

def writable(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False

def networks():
    try:
        return sorted(name for _, name in socket.if_nameindex())
    except PermissionError:  # no sockets are allowed
        return []

def look(outside):
    return {
        "user": os.getuid(),
        "network": networks(),
        "writable": [path for path in ("/x", "/usr/x", "/dev/x", "/etc/x") if writable(path)],
        "tmp": writable("/tmp/x"),
        "outside": os.path.exists(outside),
        "processes": len([n for n in os.listdir("/proc") if n.isdigit()])
        if os.path.isdir("/proc") else 0,
    }
"""

_SEEN = """
seen = look({outside!r})
assert seen["user"] != 0, "it runs as root"
assert set(seen["network"]) <= {{"lo"}}, f"it sees the network {{seen['network']}}"
assert not seen["writable"], f"it can write {{seen['writable']}}"
assert seen["tmp"], "it cannot write /tmp"
assert not seen["outside"], "it sees files from outside"
assert seen["processes"] <= 2, "it sees other processes"
"""

_FORK = """
import os

def forked(most):
    reader, writer = os.pipe()
    for count in range(most):
        try:
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
        except OSError:
            return count
    return most
"""

_SHARE = """
import os

def refused():
    try:
        os.memfd_create("x")
    except PermissionError:
        return True
"""

_COUNTED = f"assert forked({4 * PROCESSES}) < {PROCESSES}"


def choose_isolation(wanted: Wanted, hidden: Iterable[Path] = ()) -> Isolation:
    """Choose an isolation that a probe program confirmed; SandboxError if none works.

    Args:
        wanted: `auto`: bubblewrap, otherwise namespaces; or one way by name.
        hidden: folders to hide, in addition to home, working folder and environment.
    """
    if wanted == "none":
        return NONE
    reasons: list[str] = []
    for kind in ("bubblewrap", "namespaces"):
        if wanted in ("auto", kind):
            found = _probe_all(kind, reasons)
            if found is not None:
                if kind == "bubblewrap":
                    found = replace(found, for_tests=_probe_all("namespaces", []))
                folders = tuple(str(folder) for folder in hidden)
                return replace(found, hidden=folders, passed_over=tuple(reasons))
    raise SandboxError(
        f"there is no sandbox for model-written code on this machine: {'; '.join(reasons)}",
        where=f"requested isolation: {wanted}",
        hint="install bubblewrap (package bubblewrap), or let this user make user namespaces "
        "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container, a seccomp profile that "
        "allows unshare, mount and pivot_root), or, where the machine itself is "
        "disposable, set the suite's 'sandbox: none' in the policy",
    )


def _probe_all(kind: Literal["bubblewrap", "namespaces"], reasons: list[str]) -> Isolation | None:
    reason = ""
    for variant in _variants(kind):
        try:
            return _probe(variant)
        except SandboxError as error:
            reason = reason or error.message
    reasons.append(f"{kind}: {reason or _describe_missing(kind)}")
    return None


def _describe_missing(kind: str) -> str:
    return "needs Linux" if sys.platform != "linux" else f"{kind} is not installed"


def _variants(kind: Literal["bubblewrap", "namespaces"]) -> Iterator[Isolation]:
    if sys.platform != "linux":
        return
    if kind == "namespaces":
        yield from (Isolation("namespaces", proc=proc) for proc in (True, False))
        return
    program = shutil.which("bwrap")
    if program is None:
        return
    # Root without a user namespace can become another user inside, whose processes are counted.
    user_namespace = (False, True) if os.geteuid() == 0 else (True,)
    forbids = _version(program) >= _NESTED_FORBIDDEN_SINCE
    for proc, own, named in product((True, False), user_namespace, (True, False)):
        yield Isolation(
            "bubblewrap",
            program,
            proc=proc,
            host_named=named,
            user_namespace=own,
            nested_forbidden=forbids,
        )


def _version(program: str) -> tuple[int, ...]:
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", output.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _probe(variant: Isolation) -> Isolation:
    with NamedTemporaryFile(prefix="prepare-outside-") as outside:
        look = _run(Program(_LOOK, "look", _SEEN.format(outside=outside.name)), variant)
    if not look.passed:
        raise SandboxError(f"the sandbox does not isolate: {look.detail}", where=variant.kind)
    variant = _try_cgroup(variant)
    counted = _run(Program(_FORK, "forked", _COUNTED), variant)
    filtered = _run(Program(_SHARE, "refused", "assert refused()"), variant)
    return replace(variant, processes_limited=counted.passed, calls_filtered=filtered.passed)


def _try_cgroup(variant: Isolation) -> Isolation:
    parent = cgroup.find_parent()
    if parent is None:
        return variant
    grouped = replace(variant, cgroup=str(parent))
    try:
        passed = _run(Program(_LOOK, "look", "look('/')"), grouped).passed
    except SandboxError:
        return variant
    return grouped if passed else variant


def _run(program: Program, variant: Isolation) -> Execution:
    return run_program(program, seconds=_SECONDS, memory_bytes=_MEMORY_BYTES, isolation=variant)

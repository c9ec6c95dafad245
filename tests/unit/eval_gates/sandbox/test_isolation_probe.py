"""The choice of an isolation: what works is found, what does not is named with its reason."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from eval_gates.sandbox import SandboxError, choose_isolation, fork_server
from eval_gates.sandbox.filesystem_view import interpreter, view
from eval_gates.sandbox.isolation import NONE

ROOT = Path(fork_server.__file__).parents[2]


def test_no_isolation_is_taken_only_by_name() -> None:
    assert choose_isolation("none") == NONE
    assert "no sandbox" in str(NONE)


def test_without_bubblewrap_namespaces_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        choose_isolation("namespaces")
    except SandboxError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PATH", str(tmp_path))

    found = choose_isolation("auto")

    assert found.kind == "namespaces"
    assert found.passed_over == ("bubblewrap: bubblewrap is not installed",)
    assert str(found).startswith("namespaces")
    with pytest.raises(SandboxError, match="bubblewrap is not installed") as caught:
        choose_isolation("bubblewrap")
    assert "sandbox: none" in caught.value.hint


def test_a_bubblewrap_that_does_not_work_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(SandboxError, match="uid map: Permission denied"):
        choose_isolation("bubblewrap")


def test_a_bubblewrap_that_isolates_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the command as it is, with the source where the sandbox would show it."""
    honest = tmp_path / "bwrap"
    honest.write_text(
        f"#!{sys.executable}\nimport os, sys\nrest = sys.argv[sys.argv.index('--') + 1:]\n"
        f"rest[rest.index('/sandbox')] = {str(ROOT)!r}\nos.execv(rest[0], rest)\n"
    )
    honest.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SandboxError):
        choose_isolation("bubblewrap")


# Makes a user namespace in which no other can be made, as a locked-down machine is.
LOCKED = """
import os, sys
from pathlib import Path
from eval_gates.sandbox import SandboxError, choose_isolation, linux_syscalls
user, group = os.getuid(), os.getgid()
linux_syscalls.unshare(linux_syscalls.CLONE_NEWUSER)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"0 {user} 1")
Path("/proc/self/gid_map").write_text(f"0 {group} 1")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
try:
    print(choose_isolation("auto"))
except SandboxError as error:
    print(error)
"""


def test_where_nothing_works_it_is_refused(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", LOCKED], env=environment, capture_output=True, text=True, check=False
    )
    if "unshare" in ran.stderr:
        pytest.skip("namespaces cannot be made on this machine in the first place")

    assert "there is no sandbox for model-written code" in ran.stdout, ran.stderr
    assert "bubblewrap is not installed" in ran.stdout
    assert "namespaces: model-written code could not be run: OSError" in ran.stdout
    assert "hint:  install bubblewrap" in ran.stdout


# Forbids to name a host, and nothing else, as Podman's containers do.
NAMELESS = """
import ctypes, struct
from eval_gates.sandbox import SandboxError, choose_isolation, linux_syscalls, seccomp_filter
load, equal, leave, allow, refuse = 0x20, 0x15, 0x06, 0x7FFF_0000, 0x0005_0001
steps = [(load, 0, 0, 0), (equal, 0, 1, 170), (leave, 0, 0, refuse), (leave, 0, 0, allow)]
packed = b"".join(struct.pack("=HBBI", *step) for step in steps)
ours, seccomp_filter.program = seccomp_filter.program, lambda: packed
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may
linux_syscalls.filter_calls()
seccomp_filter.program = ours
for kind in ("bubblewrap", "namespaces"):
    try:
        print(choose_isolation(kind))
    except SandboxError as error:
        print(error.message)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
def test_where_a_host_may_not_be_named_it_is_not() -> None:
    without_filter = [works(kind) for kind in ("bubblewrap", "namespaces")]
    ran = subprocess.run(
        [sys.executable, "-c", NAMELESS], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.splitlines() == without_filter


def works(kind: Literal["bubblewrap", "namespaces"]) -> str:
    try:
        return str(choose_isolation(kind))
    except SandboxError as error:
        return error.message


ORDINARY = """
from eval_gates.sandbox import Program, SandboxError, choose_isolation, run_program
test = "user, groups = f(1)\\nassert user == 65534, user"
program = Program("import os\\ndef f(x): return os.getuid(), os.getgroups()", "f", test)
for kind in ("bubblewrap", "namespaces", "none"):
    try:
        isolation = choose_isolation(kind)
        print(isolation, run_program(program, seconds=20, memory_bytes=2**28, isolation=isolation))
    except SandboxError as error:
        print(error.message)
"""


def test_an_ordinary_user_has_the_same_sandboxes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("we are an ordinary user already")
    python = next((p for p in (str(interpreter()), "/usr/bin/python3") if usable(p)), None)
    if python is None:
        pytest.skip("no interpreter that another user may run")
    ran = as_nobody([python, "-c", ORDINARY])

    lines = ran.stdout.splitlines()
    assert len(lines) == 3, ran.stderr
    for kind, line in zip(("bubblewrap", "namespaces", "none"), lines, strict=True):
        if "is not installed" not in line:
            assert line.startswith(kind), line
            assert "without a limit" not in line
            assert "passed=True" in line


def usable(python: str) -> bool:
    try:
        ran = as_nobody(
            [python, "-c", "import sys, eval_gates\nassert sys.version_info >= (3, 11)"]
        )
    except PermissionError:
        return False
    return ran.returncode == 0


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        user=65_534,
        group=65_534,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_package_folder_and_no_home_is_shown() -> None:
    shown = [Path(source) for source, _ in view().binds]

    assert Path.home() not in shown
    assert not any(Path.home().is_relative_to(path) for path in shown)
    assert not any(path.name in ("site-packages", "dist-packages") for path in shown)
    assert all(path.is_absolute() for path in shown)

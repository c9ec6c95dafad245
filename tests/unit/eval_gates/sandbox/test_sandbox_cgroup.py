"""Cgroups for programs: found where they can be made, limited, and removed in the end.

The logic in folders of this test's own, which have the names and files of a cgroup; the kernel's
part where the machine has a cgroup in which we may make others.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import HOSTILE, TEST

from eval_gates.sandbox import Isolation, Program, SandboxError, cgroup, run_program

BOTH = "cpuset memory pids"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mounted hierarchy whose group /ours/own is that of `process`."""
    monkeypatch.setattr(cgroup.Path, "rmdir", shutil.rmtree)  # limits are files here
    mounted = tmp_path / "mounted"
    for folder in (mounted, mounted / "ours", mounted / "ours" / "own"):
        folder.mkdir()
        (folder / "cgroup.subtree_control").write_text(BOTH)
    process = tmp_path / "process"
    process.mkdir()
    (process / "cgroup").write_text("4:memory:/elsewhere\n0::/ours/own\n")
    (process / "mountinfo").write_text(
        "30 24 0:26 / /proc rw - proc proc rw\n"
        f"31 24 0:27 / {mounted} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    return tmp_path


def groups(parent: Path) -> list[Path]:
    return list(parent.glob("prepare-program-*"))


def test_groups_are_made_beside_our_own(tree: Path) -> None:
    parent = tree / "mounted" / "ours"

    assert cgroup.find_parent(tree / "process") == parent
    assert groups(parent) == []


def test_groups_are_made_below_our_own_where_there_is_nothing_above(tree: Path) -> None:
    (tree / "process" / "cgroup").write_text("0::/\n")

    assert cgroup.find_parent(tree / "process") == tree / "mounted"


def test_a_part_of_the_hierarchy_may_be_mounted(tree: Path) -> None:
    info = tree / "process" / "mountinfo"
    info.write_text(info.read_text().replace("0:27 /", "0:27 /ours"))
    (tree / "mounted" / "own").mkdir()

    assert cgroup.find_parent(tree / "process") == tree / "mounted"


def test_a_group_beyond_what_we_see_is_none(tree: Path) -> None:
    (tree / "process" / "cgroup").write_text("0::/../others\n")
    (tree / "others").mkdir()
    (tree / "others" / "cgroup.subtree_control").write_text(BOTH)

    assert cgroup.find_parent(tree / "process") is None


@pytest.mark.parametrize("gone", ["process/cgroup", "process/mountinfo"])
def test_without_the_second_version_there_is_none(tree: Path, gone: str) -> None:
    (tree / gone).write_text("4:memory:/elsewhere\n")

    assert cgroup.find_parent(tree / "process") is None
    (tree / gone).unlink()
    assert cgroup.find_parent(tree / "process") is None


def test_controllers_are_asked_for_where_they_are_off(tree: Path) -> None:
    control = tree / "mounted" / "ours" / "cgroup.subtree_control"
    control.write_text("cpuset")

    cgroup.find_parent(tree / "process")

    assert control.read_text() == "+memory +pids"


def test_a_group_that_may_not_be_changed_is_none(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose cgroups are mounted read-only."""

    def refuse(*_: object, **__: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cgroup.Path, "mkdir", refuse)

    assert cgroup.find_parent(tree / "process") is None


def test_a_group_has_its_limits_and_ends_with_its_use(tree: Path) -> None:
    parent = tree / "mounted"
    with cgroup.make(parent, 2**30, 16) as group:
        said = {file.name: file.read_text() for file in group.iterdir()}
        assert said == {
            "memory.max": str(2**30 + 2**25),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "pids.max": "16",
        }
        cgroup.enter(str(group))
        assert (group / "cgroup.procs").read_text() == "0"
    assert groups(parent) == []


def test_a_group_that_cannot_be_limited_is_not_left(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(cgroup.Path, "write_text", refuse)
    with pytest.raises(PermissionError), cgroup.make(tree / "mounted", 2**30, 16):
        pass
    assert groups(tree / "mounted") == []


HOLDER = """
import sys, time
from pathlib import Path
from eval_gates.sandbox import cgroup
with cgroup.make(Path(sys.argv[1]), 2**30, 16):
    print("made", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_run_left_is_removed_by_the_next(tree: Path) -> None:
    parent = tree / "mounted" / "ours"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, parent],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(cgroup.__file__).parents[2])},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"made\n"
        cgroup.find_parent(tree / "process")
        assert len(groups(parent)) == 1
        holder.kill()

    cgroup.find_parent(tree / "process")
    assert groups(parent) == []


@pytest.mark.parametrize(
    ("events", "killed"), [("low 0\noom 1\noom_kill 0\n", False), ("oom_kill 3\n", True)]
)
def test_the_kernel_tells_whom_it_killed(tmp_path: Path, events: str, killed: bool) -> None:
    (tmp_path / "memory.events").write_text(events)

    assert cgroup.was_killed_for_memory(str(tmp_path)) == killed
    assert not cgroup.was_killed_for_memory("")


def test_a_group_that_cannot_be_made_any_more_is_no_verdict(tmp_path: Path) -> None:
    isolation = Isolation("namespaces", cgroup=str(tmp_path / "gone"))
    with pytest.raises(SandboxError, match="no cgroup could be made"):
        run_program(
            Program("def f(x): return 2", "f", "assert f(1) == 2"),
            seconds=5,
            memory_bytes=2**28,
            isolation=isolation,
        )


def test_it_is_said_which_of_the_two_holds() -> None:
    assert str(Isolation("namespaces", cgroup="/x")).startswith("namespaces in a cgroup")
    assert str(Isolation("namespaces")).startswith("namespaces without a cgroup")


def test_the_kernel_stops_a_program_that_takes_too_much(sandbox: Isolation) -> None:
    """The init's own check of /proc is switched off."""
    if not sandbox.cgroup:
        pytest.skip("no cgroup can be made on this machine")
    program = Program(HOSTILE["memory of many"].solution, "f", TEST)

    execution = run_program(
        program, seconds=60, memory_bytes=2**27, isolation=replace(sandbox, proc=False)
    )

    assert execution.outcome == "memory"
    assert groups(Path(sandbox.cgroup)) == []

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prepare.errors import StoreError
from prepare.file_locks import (
    doing,
    find_mount,
    held_descriptors,
    holder_of,
    is_locked,
    locked,
    refuse_local_locks,
    remark_on_work,
    this_process,
)

MOUNTS = """
21 1 0:39 / / rw,relatime - fuse.without_source  rw
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /data rw,relatime - nfs4 server:/data rw,vers=4.2,local_lock=none
31 22 0:41 / /data/old rw,relatime - nfs server:/old rw,vers=3,local_lock=all
32 22 0:42 / /nolock rw,relatime - nfs server:/x rw,vers=3,nolock,local_lock=all
33 22 0:43 / /lustre rw,relatime - lustre mgs@tcp:/l rw,flock
34 22 0:44 / /local rw,relatime - lustre mgs@tcp:/l rw,localflock
35 22 0:45 / /bucket rw,relatime - fuse.s3fs s3fs rw,user_id=0
36 22 0:46 / /with\\040space rw,relatime - fuse.sshfs host: rw
"""


def test_a_process_says_what_it_does() -> None:
    with doing("run 7"):
        with doing("serves fp8"):
            assert this_process().startswith("run 7 since ")
        assert this_process().startswith("run 7 since ")
        remark_on_work("needs an hour")
        with doing("serves fp8"):
            described = r"run 7 since \d\d:\d\d UTC \(needs an hour\), serves fp8 since "
            assert re.match(described, this_process())
    assert this_process().startswith("process ")


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path, before = tmp_path / "locks" / "key", held_descriptors()
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
        assert is_locked(path)
        held = set(held_descriptors()) - set(before)
        assert held
    assert not is_locked(path)
    assert not held & set(held_descriptors())
    with locked(path, wait=False) as again:
        assert again


def test_children_that_start_meanwhile_need_not_hold_it(tmp_path: Path) -> None:
    path, before = tmp_path / "key", held_descriptors()
    with locked(path, is_inherited=False) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
        assert held_descriptors() == before


def test_a_waiting_process_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    code = (
        "import sys; from pathlib import Path; from prepare.file_locks import locked\n"
        "with locked(Path(sys.argv[1]), lambda text: print(text, flush=True)): print('held')"
    )
    with locked(path):
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert f"process {os.getpid()} of " in other.stdout.readline()
        assert f"process {os.getpid()} of " in holder_of(path)
    assert other.communicate(timeout=60)[0] == "held\n"
    assert path.read_text()  # as a killed process leaves it
    assert holder_of(path) == ""


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o700, 0o600), (0o2770, 0o660)])
def test_modes_are_the_stores_whatever_the_umask(
    tmp_path: Path, folder_mode: int, mode: int
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(folder_mode)
    before = os.umask(0o077)
    try:
        with locked(store / "lock"), locked(store / "locks" / "key"):
            pass
    finally:
        os.umask(before)
    for path, wanted in (("lock", mode), ("locks/key", mode), ("locks", folder_mode)):
        assert stat.S_IMODE((store / path).stat().st_mode) == wanted


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("/data/old/store", "local_lock=all"),
        ("/nolock/store", "nolock"),
        ("/local/store", "localflock"),
        ("/bucket/store", "fuse.s3fs"),
        ("/with space/store", "fuse.sshfs"),
    ],
)
def test_a_file_system_without_shared_locks_is_refused(folder: str, word: str) -> None:
    with pytest.raises(StoreError, match=word) as caught:
        refuse_local_locks(Path(folder), MOUNTS)
    assert "store_locks: trusted" in (caught.value.hint or "")


@pytest.mark.parametrize("folder", ["/home/me/store", "/data/store", "/lustre/store", "/datax"])
def test_others_are_taken(folder: str) -> None:
    refuse_local_locks(Path(folder), MOUNTS)


def test_the_innermost_mount_counts() -> None:
    assert find_mount(Path("/data/old/x"), MOUNTS) is not None
    assert (find_mount(Path("/data/old/x"), MOUNTS) or ("",))[0] == "/data/old"
    assert find_mount(Path("/x"), "") is None
    assert find_mount(Path("/")) is not None  # of this machine


def test_a_file_system_that_takes_no_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError) as caught, locked(tmp_path / "lock"):
        pytest.fail("a lock was held")
    assert caught.value.where == str(tmp_path / "lock")


def test_a_link_or_a_pipe_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"link|loop"), locked(tmp_path / "link"):
        pass
    assert not (tmp_path / "elsewhere").exists()

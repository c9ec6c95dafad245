from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from listener import Listener

from pipeline.environments.compile_caches import VARIABLES, open_caches
from pipeline.environments.garbage_collection import collect
from pipeline.environments.settings import Settings

IDENTITY = "0123456789abcdef" * 4


def opened(home: Path) -> dict[str, str]:
    return open_caches(home, IDENTITY, Listener())


def test_each_environment_has_one_that_is_ours_alone(tmp_path: Path) -> None:
    found = opened(tmp_path)
    assert found.keys() == VARIABLES.keys()
    folder = tmp_path / "caches" / IDENTITY[:16]
    assert {Path(place).parent for place in found.values()} == {folder}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)} == {0o700}
    assert opened(tmp_path) == found
    other = open_caches(tmp_path, "f" * 64, Listener())
    assert not set(found.values()) & set(other.values())


@pytest.mark.parametrize("which", ["caches", f"caches/{IDENTITY[:16]}"])
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_where_others_write_nothing_is_trusted(tmp_path: Path, which: str, mode: int) -> None:
    opened(tmp_path)
    (tmp_path / which).chmod(mode)
    heard = Listener()
    assert open_caches(tmp_path, IDENTITY, heard) == {}
    assert str(tmp_path) in heard.notes[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_nor_another_users(tmp_path: Path) -> None:
    opened(tmp_path)
    os.chown(tmp_path / "caches" / IDENTITY[:16], 12345, -1)
    assert opened(tmp_path) == {}


def test_nor_a_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "caches").symlink_to(elsewhere)
    heard = Listener()
    assert open_caches(tmp_path, IDENTITY, heard) == {}
    assert "caches is a link" in heard.notes[0]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "is_trusted"),
    [("mode=2775,gid=31400", True), ("mode=2777,gid=31400", False), ("mode=2775,uid=31400", False)],
)
def test_a_volume_of_roots_is_for_whom_it_was_given_to(
    tmp_path: Path, options: str, is_trusted: bool
) -> None:
    """As Kubernetes mounts one with `fsGroup`."""
    volume = tmp_path / "caches"
    volume.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", volume]).returncode:
        pytest.skip("this user, or this machine, mounts nothing")
    try:
        assert bool(opened(tmp_path)) == is_trusted
        if is_trusted:
            assert stat.S_IMODE((volume / IDENTITY[:16]).stat().st_mode) & 0o777 == 0o700
            (volume / IDENTITY[:16]).chmod(0o770)
            assert opened(tmp_path) == {}
    finally:
        subprocess.run(["umount", volume], check=True)


def test_what_nobody_has_used_for_a_while_is_collected(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store=tmp_path / "store")
    folder = Path(opened(tmp_path)["VLLM_CACHE_ROOT"])
    folder.mkdir()
    (folder / "compiled").write_bytes(b"x" * 100_000)
    assert collect(settings, dry_run=False, older_than_days=7) == []
    then = time.time() - 8 * 86_400
    os.utime(folder.parent, (then, then))
    (found,) = collect(settings, dry_run=True, older_than_days=7)
    assert (found.path, folder.exists()) == (folder.parent, True)
    assert found.size_bytes >= 100_000
    assert len(collect(settings, dry_run=False, older_than_days=7)) == 1
    assert not folder.parent.exists()

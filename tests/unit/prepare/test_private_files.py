from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from prepare.private_files import create_exclusively, open_log, write_atomically


def test_log_that_is_a_link_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "authorized_keys"
    secret.write_text("mine")
    (tmp_path / "log").symlink_to(secret)
    with pytest.raises(OSError, match=r"log"):
        open_log(tmp_path / "log")
    assert secret.read_text() == "mine"


def test_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="not a regular file"):
            open_log(tmp_path / "log")
    finally:
        os.close(reader)
    with pytest.raises(OSError, match="log"):  # without a reader, opening it would wait
        open_log(tmp_path / "log")


@pytest.mark.parametrize("number", [0, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_one_creates_a_file_also_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if number:
        monkeypatch.setattr(os, "link", refused)
    made = [create_exclusively(tmp_path / "file", text) for text in (b"one", b"two")]
    assert made == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"one"
    assert (tmp_path / "file").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("is_private", "mode"), [(True, 0o600), (False, 0o644)])
def test_only_a_file_for_others_has_the_user_s_permissions(
    is_private: bool, mode: int, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    write_atomically(tmp_path / "file", "text", is_private=is_private)
    os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from pipeline.core.untrusted.file import UntrustedFileError, open_regular, read_regular

SOON = 2.0  # seconds, where an ordinary open would wait forever


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1234")
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file, 4) == b"1234"
    assert read_regular(tmp_path / "link", 4) == b"1234"
    with open_regular(file, None) as opened:
        assert opened.read(2) == b"12"
        assert not os.get_inheritable(opened.fileno())


def test_an_empty_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert read_regular(tmp_path / "a", 0) == b""


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(UntrustedFileError) as caught:
        read_regular(tmp_path / "a", 4)
    assert "4 bytes" in str(caught.value.strerror)
    with pytest.raises(UntrustedFileError):
        open_regular(tmp_path / "a", 4)


@pytest.mark.parametrize("what", ["pipe", "socket", "folder", "device", "link to a pipe"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    place = tmp_path / "a"
    if what == "pipe":
        os.mkfifo(place)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(place))
    elif what == "folder":
        place.mkdir()
    elif what == "device":
        place.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        place.symlink_to(tmp_path / "pipe")
    started = time.monotonic()
    with pytest.raises(UntrustedFileError):
        read_regular(place, 2**40)
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("name", ["nul\0", "half a pair \ud800"])
def test_a_path_that_cannot_be_is_an_oserror(tmp_path: Path, name: str) -> None:
    with pytest.raises(UntrustedFileError):
        read_regular(tmp_path / name, 10)


def test_a_missing_file_a_circle_and_a_long_name_stay_oserrors(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for name in ("nothing", "circle", "x" * 5000):
        with pytest.raises(OSError, match="Errno"):
            read_regular(tmp_path / name, 10)


def test_a_file_that_grows_or_hides_its_size_is_bounded_too() -> None:
    with pytest.raises(UntrustedFileError):  # a regular file whose size the kernel tells as 0
        read_regular(Path("/proc/self/maps"), 10)

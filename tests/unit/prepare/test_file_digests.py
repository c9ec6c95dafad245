from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from prepare import digest
from prepare.digest import FileDigests
from prepare.errors import CheckpointError

LATER_NS = 10_000_000_000


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, int, int | None, str]] = []
        self.notes: list[str] = []

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.events.append((task, done, total, unit))

    def note(self, text: str) -> None:
        self.notes.append(text)


def in_ten_seconds() -> int:
    return time.time_ns() + LATER_NS


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    real = digest._hash

    def counting(file: FileIO, *rest: Any) -> tuple[str, int]:
        names.append(Path(f"/proc/self/fd/{file.fileno()}").readlink().name)
        return real(file, *rest)

    monkeypatch.setattr(digest, "_hash", counting)
    return names


def test_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    cache = tmp_path / "deep" / "cache.json"
    assert FileDigests(cache, in_ten_seconds).digest(file) == expected
    assert FileDigests(cache, in_ten_seconds).digest(file) == expected
    assert reads == ["weights"]


def test_fresh_file_is_not_remembered(tmp_path: Path, reads: list[str]) -> None:
    """Within a tick of the file system's clock it could change without a trace."""
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    digests = FileDigests(tmp_path / "cache.json")
    digests.digest(file)
    digests.digest(file)
    assert len(reads) == 2
    assert not (tmp_path / "cache.json").exists()


def test_change_that_restores_size_and_mtime_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    times = file.stat()
    digests = FileDigests(tmp_path / "cache.json", in_ten_seconds)
    before = digests.digest(file)
    time.sleep(0.02)  # a tick of the kernel's clock for ctime
    file.write_bytes(b"xyz")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns
    assert digests.digest(file) == hashlib.sha256(b"xyz").hexdigest() != before


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b'{"schema_version": 1, "files": 3}'),
        *(b'{"schema_version": 9}', b'{"schema_version": 1}'),
    ],
)
def test_damaged_cache_starts_anew(tmp_path: Path, damage: bytes, reads: list[str]) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache.json"
    file.write_bytes(b"abc")
    cache.write_bytes(damage)
    digests = FileDigests(cache, in_ten_seconds)
    assert digests.digest(file) == digests.digest(file) == hashlib.sha256(b"abc").hexdigest()
    assert len(reads) == 1


@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_digests_that_others_may_write_are_ignored(tmp_path: Path, mode: int) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache.json"
    file.write_bytes(b"abc")
    right = FileDigests(cache, in_ten_seconds).digest(file)
    cache.write_text(cache.read_text().replace(right, "0" * 64))
    assert FileDigests(cache, in_ten_seconds).digest(file) == "0" * 64
    cache.chmod(mode)
    assert FileDigests(cache, in_ten_seconds).digest(file) == right


def test_a_home_without_locks_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    (tmp_path / "weights").write_bytes(b"abc")
    told = Listener()
    FileDigests(tmp_path / "cache.json", in_ten_seconds).digest(tmp_path / "weights", told)
    assert len(told.notes) == 1
    assert "has no locks" in told.notes[0]


def _digest_in_child(arguments: tuple[Path, Path]) -> str:
    cache, file = arguments
    return FileDigests(cache, in_ten_seconds).digest(file)


def test_processes_at_once_lose_no_entry(tmp_path: Path) -> None:
    files = [tmp_path / f"shard{n}" for n in range(12)]
    for file in files:
        file.write_text(file.name)
    cache = tmp_path / "cache.json"
    with ProcessPoolExecutor(max_workers=3) as pool:
        found = list(pool.map(_digest_in_child, [(cache, file) for file in files]))
    assert found == [hashlib.sha256(file.name.encode()).hexdigest() for file in files]
    assert len(json.loads(cache.read_text())["files"]) == len(files)


def test_change_while_reading_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")

    class Meddler(Listener):
        def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
            with file.open("ab") as more:
                more.write(b"d")

    monkeypatch.setattr(digest, "BLOCK_BYTES", 3)
    with pytest.raises(CheckpointError) as caught:
        FileDigests(tmp_path / "cache.json").digest(file, _Once(Meddler()))
    assert caught.value.where == str(file)


class _Once:
    def __init__(self, inner: Listener) -> None:
        self._inner: Listener | None = inner

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        if self._inner is not None:
            inner, self._inner = self._inner, None
            inner.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        raise AssertionError(text)

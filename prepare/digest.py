"""SHA-256 digests."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, StoreError, raise_as
from prepare.events import NullProgress, Progress
from prepare.file_locks import locked
from prepare.private_files import untrusted_reason, write_atomically
from prepare.untrusted import open_regular

BLOCK_BYTES = 8 * 1024 * 1024

# A write within one clock tick of the file system keeps the same times. Two seconds is the coarsest
# tick in use (FAT); git calls such files racily clean.
SETTLED_AFTER_NS = 2_000_000_000

CACHE_SCHEMA = 1
SAVE_EVERY_S = 5.0  # a checkpoint may have thousands of small files


class FileDigests:
    """SHA-256 digests of files, cached so that a 150 GB checkpoint is read once.

    A digest is valid while device, inode, size, mtime and ctime are unchanged. Processes can share
    the cache.
    """

    def __init__(self, cache_file: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.cache_file = cache_file
        self._now_ns = now_ns

    def digest(self, path: Path, progress: Progress | None = None) -> str:
        """Return the SHA-256; raises as :meth:`digest_all`."""
        [digest] = self.digest_all([path], progress)
        return digest

    def digest_all(self, paths: list[Path], progress: Progress | None = None) -> Iterator[str]:
        """Yield each file's digest.

        CheckpointError: a file cannot be read, or changed meanwhile.
        """
        progress = progress or NullProgress()
        known = self._read_cache()
        before = 0
        with raise_as(CheckpointError, "the file cannot be read", Path()):
            total = sum(path.stat().st_size for path in paths)
        fresh = dict[str, Any]()
        saved = time.monotonic()
        try:
            for path in paths:
                report = partial(_report, progress, before, total)
                sha256, size, entry = self._look_up(path, known, report)
                before += size
                fresh |= entry
                if fresh and time.monotonic() - saved > SAVE_EVERY_S:
                    self._remember(fresh, progress)
                    fresh = {}
                    saved = time.monotonic()
                yield sha256
        finally:
            if fresh:
                self._remember(fresh, progress)

    def bytes_to_hash(self, paths: Iterable[Path]) -> int:
        """Return the size of uncached files."""
        cache = self._read_cache()
        size = 0
        for path in paths:
            status = path.stat()
            known = cache.get(str(path.resolve()))
            if known is None or known["identity"] != _identity(status):
                size += status.st_size
        return size

    def _look_up(
        self, path: Path, cache: Mapping[str, Any], report: Callable[[int], None]
    ) -> tuple[str, int, dict[str, Any]]:
        """Return digest, size and any new cache entry."""
        with (
            raise_as(CheckpointError, "the file cannot be read", path),
            open_regular(path, None) as file,
        ):
            real = path.resolve(strict=True)
            before = os.fstat(file.fileno())
            known = cache.get(str(real))
            if known is not None and known["identity"] == _identity(before):
                report(before.st_size)
                return str(known["sha256"]), before.st_size, {}
            started = self._now_ns()
            sha256, done = _hash(file, before.st_size, report)
            after = os.fstat(file.fileno())
        sizes = {before.st_size, done, after.st_size}
        if len(sizes) > 1 or before.st_mtime_ns != after.st_mtime_ns:
            raise CheckpointError(
                "the file changed while it was read",
                where=str(path),
                hint="wait until the writing process has finished, then run the command again",
            )
        settled = started - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_AFTER_NS
        if settled and _identity(before) == _identity(after):
            return sha256, done, {str(real): {"identity": _identity(before), "sha256": sha256}}
        return sha256, done, {}

    def _read_cache(self) -> dict[str, dict[str, Any]]:
        if untrusted_reason(self.cache_file.parent, self.cache_file):
            return {}
        try:
            cache = json.loads(self.cache_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or damaged: start an empty one
            return {}
        if not isinstance(cache, dict) or cache.get("schema_version") != CACHE_SCHEMA:
            return {}
        files = cache.get("files")
        if not isinstance(files, dict):
            return {}
        return {path: entry for path, entry in files.items() if _is_sound(entry)}

    def _remember(self, fresh: Mapping[str, Any], progress: Progress) -> None:
        try:
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            lock = self.cache_file.with_name(self.cache_file.name + ".lock")
            with locked(lock, is_inherited=False):
                files = {p: entry for p, entry in self._read_cache().items() if Path(p).exists()}
                files |= fresh
                cache = {"schema_version": CACHE_SCHEMA, "files": files}
                write_atomically(self.cache_file, json.dumps(cache, indent=1))
        except (OSError, StoreError) as error:
            why = error.message if isinstance(error, StoreError) else error.strerror
            progress.note(f"cannot write the digest cache: {self.cache_file}: {why}")


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _is_sound(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("identity"), list)
        and isinstance(entry.get("sha256"), str)
        and len(entry["sha256"]) == 64
    )


def _hash(file: Any, size: int, report: Callable[[int], None]) -> tuple[str, int]:
    """Return digest and bytes read, at most `size`."""
    sha256 = hashlib.sha256()
    done = 0
    block = bytearray(min(size + 1, BLOCK_BYTES))
    view = memoryview(block)
    while done <= size and (count := file.readinto(block)):
        sha256.update(view[:count])
        done += count
        report(done)
    return sha256.hexdigest(), done


def _report(progress: Progress, before: int, total: int, done: int) -> None:
    progress.advance("hash files", before + done, total, "bytes")


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of the bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return a file's SHA-256; FileDigests caches it."""
    with open_regular(path, None) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of canonical JSON: sorted keys, no spaces, ASCII; 1 and 1.0 differ.

    ValueError: a number is NaN or infinite. TypeError: a value is not plain data.
    """
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return digest_bytes(text.encode("ascii"))

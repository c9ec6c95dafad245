"""A small file system that a test fills; root alone can mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEGABYTES = 4


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount it there; skips the test where that is refused."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system is mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte."""
    with pytest.raises(OSError, match="No space"):
        (folder / "ballast").write_bytes(bytes((MEGABYTES + 1) * 2**20))

"""The machine's memory, or what a container leaves of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.core import memory
from pipeline.core.memory import memory_bytes


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (limit, tmp_path / "none"))
    physical = memory_bytes()
    assert physical == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit.write_text("max\n")
    assert memory_bytes() == physical
    limit.write_text("1048576\n")
    assert memory_bytes() == 1_048_576

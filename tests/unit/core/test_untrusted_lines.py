from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_refusal import refusal

from eval_gates.suites.json_lines import read_rows
from pipeline.core.errors import EvaluationDataError
from pipeline.core.untrusted import lines as foreign_lines
from pipeline.core.untrusted.lines import UntrustedLinesError, read_lines


def all_lines(path: Path) -> None:
    """What a stage does; for the measuring process."""
    for _ in read_rows(path):
        pass


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_lines_are_read_with_unicodes_own_separators_inside(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    content = "a\u2028b\r\n\nc".encode()
    file.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert list(read_lines(file)) == ["a\u2028b", "", "c"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"ok\n\xff\n"),
        ("a.jsonl.gz", b"hello\n"),
        ("a.jsonl.gz", gzip.compress(b"line\n" * 10_000, mtime=0)[:-10]),
        ("a.jsonl.gz", gzip.compress(b"line\n" * 10_000, mtime=0)[:-8] + b"12345678"),
        ("a.jsonl.gz", gzip.compress(b"x", mtime=0)[:12] + b"\xff" * 30),
    ],
)
def test_what_is_damaged_is_said_with_its_line(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UntrustedLinesError, match="line"):
        list(read_lines(file))


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_lines, "MAX_LINE_CHARACTERS", 10)
    file = tmp_path / "a"

    def read() -> list[str]:
        return list(read_lines(file, max_lines=3, max_characters=20))

    for content in ("x" * 11, "\n" * 4, "123456789\n" * 3):
        file.write_text(content)
        with pytest.raises(UntrustedLinesError, match="more than"):
            read()
    file.write_text("123456789\n" * 2)
    assert len(read()) == 2


def test_a_pipe_in_the_place_of_data_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(EvaluationDataError) as caught:
        list(read_rows(tmp_path / "a.jsonl"))
    assert caught.value.where.endswith("a.jsonl")


@pytest.mark.parametrize("what", ["a bomb of empty lines", "a bomb of one line", "a line of ["])
def test_a_bomb_is_refused_in_bounded_time_and_memory(tmp_path: Path, what: str) -> None:
    file = tmp_path / "a.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(64 if what != "a line of [" else 5):
            packed.write((b"\n" if "empty" in what else b"[") * 2**20)
        if what == "a line of [":
            packed.write(b"\n")
    found = refusal("test_untrusted_lines:all_lines", file)
    assert (found.error or "").startswith("EvaluationDataError")
    assert found.mib < 300
    assert found.seconds < 2 * 2  # with what other work takes from the caches


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_only_the_projects_errors_come_out(tmp_path: Path, content: bytes) -> None:
    for name in ("f.jsonl", "f.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
        with contextlib.suppress(EvaluationDataError):
            all_lines(tmp_path / name)

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pipeline.core.untrusted import rows
from pipeline.core.untrusted.lines import UntrustedLinesError
from pipeline.core.untrusted.rows import read_flat_rows


def test_numbers_and_texts_of_each_row(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"id": "a", "score": NaN, "shots": [[1]]}\n{"id": 1}\n'))
    first, second = read_flat_rows(file)
    assert first.keys() == {"id", "score"}
    assert second == {"id": 1}


def test_lists_of_counts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"id": "a", "tokens": [1, 2]}\n{"id": "b", "tokens": [[1]]}\n')
    assert list(read_flat_rows(file)) == [{"id": "a", "tokens": [1, 2]}, {"id": "b"}]
    monkeypatch.setattr(rows, "MAX_VALUES", 3)
    with pytest.raises(UntrustedLinesError):
        list(read_flat_rows(file))


@pytest.mark.parametrize("line", ["[]", "1", "{", "", '{"a": 1, "a": 2}'])
def test_a_line_that_is_no_object(tmp_path: Path, line: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"id": "a"}}\n{line}\n')
    with pytest.raises(UntrustedLinesError, match="line 2"):
        list(read_flat_rows(file))


def test_more_than_anyone_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"a": 1, "b": 2}\n' * 3)
    monkeypatch.setattr(rows, "MAX_VALUES", 5)
    with pytest.raises(UntrustedLinesError, match=" 5 "):
        list(read_flat_rows(file))
    monkeypatch.setattr(rows, "MAX_LINES", 2)
    with pytest.raises(UntrustedLinesError, match=" 2 "):
        list(read_flat_rows(file))

"""Evaluation data in a folder: found, read, and complained about with place and hint."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.json_lines import read_rows, write_rows
from prepare.errors import EvaluationDataError


@pytest.mark.parametrize("zipped", [False, True])
def test_rows_are_read_with_their_places(tmp_path: Path, zipped: bool) -> None:
    text = '{"a": 1}\n\n{"a": "é"}\n'.encode()
    path = tmp_path / ("rows.jsonl.gz" if zipped else "rows.jsonl")
    path.write_bytes(gzip.compress(text) if zipped else text)

    assert list(read_rows(path)) == [(f"{path}, line 1", {"a": 1}), (f"{path}, line 3", {"a": "é"})]


@pytest.mark.parametrize(
    ("line", "message"), [("{broken", "not JSON"), ("[1, 2]", "JSON list"), ("7", "JSON int")]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n')

    with pytest.raises(EvaluationDataError, match=message) as caught:
        list(read_rows(path))

    assert caught.value.where == f"{path}, line 2"


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers())))
def test_written_rows_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = json.loads(json.dumps(rows))
    write_rows(path, rows)

    assert [row for _, row in read_rows(path)] == rows

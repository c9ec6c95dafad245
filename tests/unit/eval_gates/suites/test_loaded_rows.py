"""Rows as a library loads them: a value that a prompt would show otherwise is named."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.loaded_rows import check_loaded, is_kept
from prepare.errors import EvaluationDataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_is_kept_as_itself_alone(value: Any) -> None:
    assert is_kept(value, json.loads(json.dumps(value)))
    assert not is_kept(value, str(value) if not isinstance(value, str) else value + ".0")


@pytest.mark.parametrize(
    ("written", "loaded"),
    [
        (18, 18.0),
        (1, True),
        ("2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("NA", None),
        (["a"], "['a']"),
        ([1], [1.0]),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, None),
    ],
)
def test_another_form_is_refused_by_its_line(tmp_path: Path, written: Any, loaded: Any) -> None:
    file = tmp_path / "test.jsonl"
    lines = [{"question": "One?", "answer": "x"}, {"question": "Two?", "answer": written}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = [lines[0], {**lines[1], "answer": loaded}]
    with pytest.raises(EvaluationDataError, match="'answer'") as caught:
        check_loaded(read, [str(file)])
    assert caught.value.where == f"{file}, line 2"
    check_loaded(read[:1], [str(file)])
    check_loaded([], [str(tmp_path / "test.csv")])


def test_empty_keys_that_a_table_adds_change_nothing() -> None:
    assert is_kept({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": None}], "d": None})

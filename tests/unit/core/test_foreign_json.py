from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.foreign.json import (
    MAX_DEPTH,
    MAX_VALUES,
    ForeignJsonError,
    parse_json,
    read_json_file,
)

REFUSED = {
    "nothing": (b"", "Expecting value"),
    "not UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "BOM"),
    "UTF-16": ("{}".encode("utf-16"), "UTF-8"),
    "a key twice": (b'{"a": 1, "b": {"x": 1, "x": 2}}', "'x' occurs twice"),
    "not a number": (b"[NaN]", "NaN"),
    "infinite": (b"[-Infinity]", "Infinity"),
    "too large a float": (b"[1e999]", "too large"),
    "a number of 10,000 digits": (b"9" * 10_000, "digits"),
    "a little too deep": (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deep"),
    "900 deep": (b"[" * 900 + b"]" * 900, "deep"),
    "objects 100,000 deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
    "open and 100,000 deep": (b"[" * 100_000, "deep"),
    "32 million lists": (b"[" + b"[]," * 32_000_000 + b"[]]", "values"),
    "half of a surrogate pair": (b'{"\\ud800": 1}', "surrogate"),
    "two values": (b"1 2", "Extra data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_in_which_words(name: str) -> None:
    content, words = REFUSED[name]
    started = time.monotonic()
    with pytest.raises(ForeignJsonError) as caught:
        parse_json(content)
    assert words in str(caught.value)
    assert time.monotonic() - started < 2


def test_the_limits_themselves_are_taken() -> None:
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert len(parse_json("[" + "1," * (MAX_VALUES - 2) + "1]")) == MAX_VALUES - 1


def test_what_is_taken_where_asked_for() -> None:
    assert math.isinf(
        parse_json(b'{"time_step_limit": [0.0, Infinity]}', finite=False)["time_step_limit"][1]
    )
    assert parse_json(b'"\\ud800"', whole_text=False) == "\ud800"
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_a_file_is_read_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert read_json_file(file) == {"a": 1}
    with pytest.raises(OSError, match="larger"):
        read_json_file(file, limit=7)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_what_json_writes_is_read_as_it_was(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.binary(max_size=40) | st.text('[]{}",:\\ud8NaIfinty-+.eE0123456789 \n', max_size=60))
@settings(max_examples=400)
def test_only_its_own_error_comes_out(content: bytes | str) -> None:
    with contextlib.suppress(ForeignJsonError):
        parse_json(content)

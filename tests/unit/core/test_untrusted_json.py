from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.untrusted.json import (
    MAX_DEPTH,
    MAX_ITEM_CHARACTERS,
    MAX_VALUES,
    UntrustedJsonError,
    parse_json,
    read_json_file,
    read_json_items,
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
def test_refusals_and_their_messages(name: str) -> None:
    content, words = REFUSED[name]
    started = time.monotonic()
    with pytest.raises(UntrustedJsonError) as caught:
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
    with contextlib.suppress(UntrustedJsonError):
        parse_json(content)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


class TestLongLists:
    @given(items=st.lists(JSON_VALUES, max_size=8), part=st.integers(1, 40), spaced=st.booleans())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_items_are_those_of_the_whole_wherever_reading_pauses(
        self, tmp_path: Path, items: list[Any], part: int, spaced: bool
    ) -> None:
        path = tmp_path / "long.json"
        path.write_text(json.dumps(items, indent=2 if spaced else None), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.core.untrusted.json.CHUNK_CHARACTERS", part)
            assert list(read_json_items(path, limit=10**6)) == items

    @pytest.mark.parametrize(
        "content",
        [
            *(b"", b"{}", b"[", b"[1", b"[1 2]", b"[1,]", b"[1] 2", b"[1,,2]", b'["a]', b"[NaN]"),
            *(b'[{"a": 1, "a": 2}]', b"[1e999]", b"[" * 100 + b"]" * 100, b"[" * 100_000),
            *(b'["\\ud800"]', b'["\xff"]', b"[" + b"9" * 10_000 + b"]"),
        ],
    )
    def test_what_is_no_such_list_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "long.json"
        path.write_bytes(content)
        with pytest.raises(UntrustedJsonError):
            list(read_json_items(path, limit=10**6))

    def test_one_item_without_an_end_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "long.json"
        path.write_bytes(b'["' + b"a" * (4 * MAX_ITEM_CHARACTERS) + b'"]')
        with pytest.raises(UntrustedJsonError, match="item 1"):
            list(read_json_items(path, limit=10**9))

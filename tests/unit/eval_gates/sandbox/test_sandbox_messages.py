"""Values and messages between judge and solver: they cross whole, and hostile ones harm nobody."""

from __future__ import annotations

import json
import os
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.sandbox.messages import MessageError, read_message, write_message
from eval_gates.sandbox.values import Opaque, ValuesError, decode, encode

HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=10,
)
TAGS = [
    *("int", "tuple", "set", "frozenset", "keys", "dict", "bytes", "bytearray", "complex"),
    *("range", "decimal", "fraction", "iterator", "opaque", "other"),
]
CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(TAGS),
            inner,
            max_size=2,
        )
    ),
)


def crossed(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@given(VALUES)
def test_values_cross_whole(value: Any) -> None:
    arrived = crossed(value)

    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


@given(CONTENT)
def test_what_is_no_value_is_refused_and_harms_nobody(content: Any) -> None:
    try:
        decode(content)
    except ValuesError:
        return


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class LyingList(list[int]):
    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Liar(3), 3),
        (LyingList([1]), [1]),
        (bytearray(b"x"), bytearray(b"x")),
        (range(1, 9, 3), range(1, 9, 3)),
        ({"a": 1}.keys(), {"a"}),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.10"), Decimal("0.10")),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (float("inf"), float("inf")),
    ],
)
def test_values_arrive_as_builtin_types(value: Any, expected: Any) -> None:
    arrived = crossed(value)

    assert arrived == expected
    assert type(arrived) in (type(expected), type({}.keys()))


def test_an_iterator_arrives_with_what_it_yields() -> None:
    assert list(crossed(n * n for n in range(3))) == [0, 1, 4]


@pytest.mark.parametrize("value", [object(), np.zeros(2), len, iter(int, 1)])
def test_what_has_no_plain_form_equals_nothing(value: Any) -> None:
    arrived = crossed(value)

    assert isinstance(arrived, Opaque)
    assert arrived not in (None, 0, [], "")
    assert "solution's" in repr(arrived)


@given(VALUES)
def test_messages_cross_whole_and_nothing_more_is_read(value: Any) -> None:
    reader, writer = os.pipe()
    try:
        for content in (encode(value), "next"):
            write_message(writer, content)
        assert decode(read_message(reader)) == value
        assert read_message(reader) == "next"
        os.close(writer)
        with pytest.raises(EOFError):
            read_message(reader)
    finally:
        os.close(reader)


def test_a_message_beyond_a_pipe_crosses_whole() -> None:
    reader, writer = os.pipe()
    content = "x" * 1_000_000
    thread = threading.Thread(target=write_message, args=(writer, content))
    thread.start()
    assert read_message(reader, largest=2_000_000) == content
    thread.join()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\0\0", "within a message"),
        ((9).to_bytes(8, "big") + b"1", "within a message"),
        ((3).to_bytes(8, "big") + b"{,}", "no message"),
        ((2).to_bytes(8, "big") + b"\xff\xff", "no message"),
        (b"\xff" * 8, "too long"),
        ((90_000).to_bytes(8, "big") + b"[" * 60_000, "within|too long"),
    ],
)
def test_a_malformed_message_is_refused(sent: bytes, reason: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, sent)
    os.close(writer)
    with pytest.raises(MessageError, match=reason):
        read_message(reader, largest=80_000)
    os.close(reader)

"""Values and messages between grader and code runner, also malicious ones."""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.sandbox.framing import FramingError, read_message, write_message
from eval_gates.sandbox.value_codec import Opaque, ValueCodecError, decode, encode

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
FORMS = [
    *("int", "tuple", "set", "frozenset", "dict", "keys", "values", "items", "bytes", "bytearray"),
    *("complex", "range", "Decimal", "Fraction", "iterator", "OrderedDict", "Counter"),
    *("defaultdict", "deque", "array", "ndarray", "namedtuple", "type", "opaque", "other"),
    *("date", "time", "datetime", "timedelta", "timezone"),
]
PARTS = ["i", "<i8", "<U1", "O", "a", "ª", "eval", "object", "0" * 16, [0], [2], 1e400, 0, -1]
CONTENT = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(PARTS),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(FORMS),
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
    except ValueCodecError:
        return


Point = namedtuple("Point", ["x", "y"])
EAST = timezone(timedelta(hours=1, minutes=30), "east")


@pytest.mark.parametrize(
    "value",
    [
        Counter("abca"),
        OrderedDict([("b", 1), ("a", [2])]),
        defaultdict(list, {"a": [1]}),
        deque([1, (2,)], maxlen=3),
        deque(),
        array("d", [0.5]),
        date(2024, 2, 29),
        time(23, 59, 1, 5),
        datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime(2024, 2, 29, 1, 2, 3, 4, EAST),
        timedelta(days=-1, microseconds=1),
        EAST,
        {1: (2, [3])}.items(),
        range(9, 1, -2),
        int,
        type(None),
        [{"a": deque([Fraction(1, 2)])}],
    ],
    ids=repr,
)
def test_plain_values_of_the_library_cross_whole(value: Any) -> None:
    arrived = crossed(value)

    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


def test_what_says_only_its_order_or_factory_crosses_whole() -> None:
    assert list(crossed({1: 2, 3: 2}.values())) == [2, 2]
    assert crossed(OrderedDict(a=1, b=2)) != OrderedDict(b=2, a=1)
    assert crossed(defaultdict(int))["missing"] == 0
    assert crossed(defaultdict(lambda: 0, {1: 2})) == {1: 2}
    with pytest.raises(KeyError):
        crossed(defaultdict(lambda: 0))["missing"]


def test_named_tuples_keep_their_names() -> None:
    arrived = crossed(Point(1, [2]))

    assert (arrived, arrived.x, arrived.y) == (Point(1, [2]), 1, [2])
    assert type(arrived).__name__ == "Point"
    with pytest.raises(ValueCodecError):
        decode({"namedtuple": ["a", ["x=print(1)"], 1]})


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1, 2], [3, 4]]),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.array(["2024-02-29"], dtype="datetime64[D]"),
        np.float32(0.1),
        np.datetime64("2024-02-29"),
    ],
    ids=repr,
)
def test_plain_arrays_cross_whole(value: Any) -> None:
    arrived = crossed(value)

    assert type(arrived) is type(value)
    assert (arrived.dtype, arrived.shape) == (value.dtype, value.shape)
    assert (arrived == value).all()


def test_an_array_of_objects_is_refused() -> None:
    with pytest.raises(ValueCodecError):
        decode({"ndarray": ["|O", [1], "0" * 16]})


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


@pytest.mark.parametrize("value", [object(), np.array([object()]), len, iter(int, 1), Liar])
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
    thread = threading.Thread(target=write_message, args=(writer, content), daemon=True)
    thread.start()
    assert read_message(reader, max_bytes=2_000_000) == content
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
    with pytest.raises(FramingError, match=reason):
        read_message(reader, max_bytes=80_000)
    os.close(reader)

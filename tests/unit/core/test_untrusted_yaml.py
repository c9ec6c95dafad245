from __future__ import annotations

import contextlib
import math
import time
from datetime import date
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.untrusted.yaml import MAX_DEPTH, MAX_VALUES, UntrustedYamlError, parse_yaml

TENFOLD = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 9)
)
LONG_TEXTS = f"a: &a {'x' * 100_000}\nb: [{','.join(['*a'] * 100)}]\n"

REFUSED = {
    "a bomb of aliases": (TENFOLD, "values"),
    "a bomb of merged mappings": (MERGED, "values"),
    "a long text a hundred times": (LONG_TEXTS, "values"),
    "an alias to what it lies in": ("loop: &l [*l]", "an alias refers to what contains it"),
    "an alias to nothing": ("a: *b", "undefined alias"),
    "too deep": ("[" * 5000 + "]" * 5000, "deep"),
    "too deep and open": ("[" * 100_000, "deep"),
    "too many values": ("[" + "x," * MAX_VALUES + "x]", "values"),
    "a key twice": ("a: 1\nb: 2\na: 3", "'a' occurs twice (line 3"),
    "a key twice, further down": ("b: {a: 1, a: 1}", "'a' occurs twice"),
    "an int of many digits": ("n: " + "9" * 5000, "digits"),
    "sixty to the five hundredth": ("n: 1" + ":59" * 500, "digits"),
    "an int of more than 64 bits": ("n: 1" + "0" * 30, "64 bits"),
    "a word for an int": ("n: !!int abc", "'abc' is no int"),
    "nothing for an int": ("n: !!int ''", "is no int"),
    "a word for a float": ("n: !!float abc", "is no float"),
    "a word for a bool": ("n: !!bool perhaps", "is no bool"),
    "a date by its tag": ("n: !!timestamp abc", "tag"),
    "bytes": ("n: !!binary aGk=", "tag"),
    "a set": ("n: !!set {a}", "tag"),
    "an object": ("n: !!python/object/apply:os.system ['true']", "tag"),
    "a function": ("n: !function a.b", "tag"),
    "a list as a key": ("? [1]\n: x", "unhashable"),
    "two documents": ("a: 1\n---\nb: 2", "single document"),
    "a tab": ("\tx: 1", "token"),
    "NUL": ("x: \0", "control characters"),
    "not a number": ("x: .nan", "not a finite number"),
    "infinite": ("x: -.INF", "not a finite number"),
    "too large a float": ("x: 1.0e+999", "not a finite number"),
    "half of a surrogate pair": ('x: "\\uD800"', "line 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_and_their_messages(name: str) -> None:
    text, words = REFUSED[name]
    started = time.monotonic()
    with pytest.raises(UntrustedYamlError) as caught:
        parse_yaml(text.encode())
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("content", [b"x: \xff\xfe\n", "x: 1".encode("utf-16")])
def test_what_is_not_utf8_is_refused(content: bytes) -> None:
    with pytest.raises(UntrustedYamlError, match="UTF-8"):
        parse_yaml(content)


def test_aliases_and_merges_of_ordinary_files_are_taken() -> None:
    text = b"m: &m {fp8: 0.01, int4: 0.02}\nmmlu: {margins: *m}\nrouge:\n  <<: *m\n  int4: 0.05\n"
    found = parse_yaml(text)
    assert found["mmlu"]["margins"] == {"fp8": 0.01, "int4": 0.02}
    assert found["rouge"] == {"fp8": 0.01, "int4": 0.05}


def test_a_date_stays_the_text_that_was_written() -> None:
    assert parse_yaml(b"a: 2001-99-99\nb: 2024-01-02") == {"a": "2001-99-99", "b": "2024-01-02"}
    assert yaml.safe_load("b: 2024-01-02") == {"b": date(2024, 1, 2)}  # what it would be


def test_numbers_without_an_end_are_taken_where_asked_for() -> None:
    found = parse_yaml(b"a: .nan\nb: .inf\n", finite=False)
    assert math.isnan(found["a"])
    assert math.isinf(found["b"])


def test_functions_of_lm_eval_are_handed_on() -> None:
    assert parse_yaml(b"a: !function x.y", function=str.upper) == {"a": "X.Y"}


def test_as_deep_and_as_many_as_allowed() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    parse_yaml(text.encode())
    parse_yaml(("[" + "x," * (MAX_VALUES - 2) + "]").encode())


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text("ab:- \n'\"é", max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_what_pyyaml_writes_is_read_as_it_was(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value).encode()) == value


@given(
    st.binary(max_size=60) | st.text("&*<>[]{}:?!,|-#'\"%@ \n\tab0.~é", max_size=60).map(str.encode)
)
@example(b"!!int '0x'")
@example(b"? !!str {a: 1}\n: 2")
@settings(max_examples=400)
def test_only_its_own_error_comes_out(content: bytes) -> None:
    with contextlib.suppress(UntrustedYamlError):
        parse_yaml(content)

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from measured_refusal import refusal
from pydantic import Field

from eval_gates.suites.json_lines import read_rows
from prepare import untrusted
from prepare.errors import EvaluationDataError
from prepare.record import Record
from prepare.untrusted import (
    MAX_DEPTH,
    MAX_VALUES,
    UntrustedFileError,
    UntrustedJsonError,
    UntrustedLinesError,
    open_regular,
    parse_json,
    parse_record,
    read_flat_rows,
    read_json_file,
    read_lines,
    read_record,
    read_regular,
)
from prepare.untrusted_yaml import MAX_YAML_VALUES, UntrustedYamlError, parse_yaml

SOON = 2.0  # seconds, where an ordinary reader would wait forever, or take minutes


class Listed(Record):
    names: tuple[str, ...] = Field(fail_fast=True)


def rows(content: bytes, tmp_path: Path) -> list[Any]:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "a"}\n' + content)
    return list(read_flat_rows(tmp_path / "a.jsonl"))


def packed(content: bytes, tmp_path: Path) -> list[str]:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    return list(read_lines(tmp_path / "a.jsonl.gz"))


TENFOLD = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 9)
)
LONG_TEXTS = f"a: &a {'x' * 100_000}\nb: [{','.join(['*a'] * 100)}]\n"
Read = Callable[[bytes, Path], Any]
READERS: dict[str, tuple[Read, type[ValueError]]] = {
    "json": (lambda content, _: parse_json(content), UntrustedJsonError),
    "record": (lambda content, _: parse_record(content, Listed), UntrustedJsonError),
    "rows": (rows, UntrustedLinesError),
    "packed": (packed, UntrustedLinesError),
    "yaml": (lambda content, _: parse_yaml(content), UntrustedYamlError),
}
LINES = gzip.compress(b"line\n" * 10_000, mtime=0)
# Reader, content, words of its error.
REFUSED: list[tuple[str, bytes | str, str]] = [
    ("json", b"", "Expecting value"),
    ("json", b'{"a": "\xff"}', "UTF-8"),
    ("json", b"\xef\xbb\xbf{}", ""),
    ("json", "{}".encode("utf-16"), "UTF-8"),
    ("json", b'{"a": 1, "b": {"x": 1, "x": 2}}', "'x' occurs twice"),
    ("json", b"[NaN]", "NaN"),
    ("json", b"[-Infinity]", "Infinity"),
    ("json", b"[1e999]", "too large"),
    ("json", b"9" * 10_000, "digits"),
    ("json", b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deep"),
    ("json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
    ("json", b"[" * 100_000, "deep"),
    ("json", b"[" + b"[]," * 32_000_000 + b"[]]", "values"),
    ("json", b'{"\\ud800": 1}', "surrogate"),
    ("json", b"1 2", "Extra data"),
    ("record", '{"names": [1, 2]}', "names.0: Input should be a valid string"),
    ("record", '{"names": [], "names": ["b"]}', "twice"),
    ("record", '{"names": [' + "[" * 100 + "]" * 100 + "]}", "deep"),
    ("record", '{"names": [], "' + "x" * 1000 + '": 1}', "xxx"),
    ("record", "{}", "names: Field required"),
    ("record", "[]", "Input should be"),
    *(("rows", line, "line 2") for line in ("[]", "1", "{", "\n", '{"a": 1, "a": 2}')),
    ("packed", b"hello\n", "line"),
    ("packed", LINES[:-10], "line"),
    ("packed", LINES[:-8] + b"12345678", "line"),
    ("packed", gzip.compress(b"x", mtime=0)[:12] + b"\xff" * 30, "line"),
    ("packed", gzip.compress(b"ok\n\xff\n", mtime=0), "line"),
    ("yaml", TENFOLD, "values"),
    ("yaml", MERGED, "values"),
    ("yaml", LONG_TEXTS, "values"),
    ("yaml", "loop: &l [*l]", "an alias refers to what contains it"),
    ("yaml", "a: *b", "undefined alias"),
    ("yaml", "[" * 5000 + "]" * 5000, "deep"),
    ("yaml", "[" * 100_000, "deep"),
    ("yaml", "[" + "x," * MAX_YAML_VALUES + "x]", "values"),
    ("yaml", "a: 1\nb: 2\na: 3", "'a' occurs twice (line 3"),
    ("yaml", "b: {a: 1, a: 1}", "'a' occurs twice"),
    ("yaml", "n: " + "9" * 5000, "digits"),
    ("yaml", "n: 1" + ":59" * 500, "digits"),
    ("yaml", "n: 1" + "0" * 30, "64 bits"),
    ("yaml", "n: !!int abc", "'abc' is no int"),
    ("yaml", "n: !!int ''", "is no int"),
    ("yaml", "n: !!float abc", "is no float"),
    ("yaml", "n: !!bool perhaps", "is no bool"),
    ("yaml", "n: !!timestamp abc", "tag"),
    ("yaml", "n: !!binary aGk=", "tag"),
    ("yaml", "n: !!set {a}", "tag"),
    ("yaml", "n: !!python/object/apply:os.system ['true']", "tag"),
    ("yaml", "n: !function a.b", "tag"),
    ("yaml", "? [1]\n: x", "unhashable"),
    ("yaml", "a: 1\n---\nb: 2", "single document"),
    ("yaml", "\tx: 1", "token"),
    ("yaml", "x: \0", "control characters"),
    ("yaml", "x: .nan", "not a finite number"),
    ("yaml", "x: -.INF", "not a finite number"),
    ("yaml", "x: 1.0e+999", "not a finite number"),
    ("yaml", 'x: "\\uD800"', "line 1"),
    ("yaml", b"x: \xff\xfe\n", "UTF-8"),
    ("yaml", "x: 1".encode("utf-16"), "UTF-8"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int, tmp_path: Path) -> None:
    reader, content, words = REFUSED[number]
    read, error = READERS[reader]
    started = time.monotonic()
    with pytest.raises(error) as caught:
        read(content.encode() if isinstance(content, str) else content, tmp_path)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.monotonic() - started < SOON


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text("ab:- \n'\"é", max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)  # fmt: skip


@given(value=PLAIN, spaced=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_is_read(tmp_path: Path, value: Any, spaced: bool) -> None:
    written = json.dumps(value, indent=2 if spaced else None)
    assert parse_json(written) == value
    assert parse_yaml(yaml.safe_dump(value).encode()) == value


@pytest.mark.parametrize("reader", READERS)
@given(
    content=st.binary(max_size=80)
    | st.text("&*<>[]{}:?!,|-#'\"%@ \n\t\\ud8NaIfinty+.eE0123~é", max_size=60).map(str.encode)
)
@example(content=b"!!int '0x'")
@example(content=b"? !!str {a: 1}\n: 2")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_its_own_error_comes_out(tmp_path: Path, reader: str, content: bytes) -> None:
    read, error = READERS[reader]
    with contextlib.suppress(error):
        read(content, tmp_path)


def test_the_limits_themselves_are_taken() -> None:
    nested = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    parse_json(nested)
    parse_yaml(nested)
    assert len(parse_json("[" + "1," * (MAX_VALUES - 2) + "1]")) == MAX_VALUES - 1
    parse_yaml(("[" + "x," * (MAX_YAML_VALUES - 2) + "]").encode())


def test_what_is_taken_where_asked_for() -> None:
    assert math.isinf(parse_json(b'{"limit": [0.0, Infinity]}', finite=False)["limit"][1])
    assert parse_json(b'"\\ud800"', whole_text=False) == "\ud800"
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"
    found = parse_yaml(b"a: .nan\nb: .inf\n", finite=False)
    assert math.isnan(found["a"])
    assert math.isinf(found["b"])
    assert parse_yaml(b"a: !function x.y", function=str.upper) == {"a": "X.Y"}


def test_ordinary_yaml() -> None:
    text = b"m: &m {fp8: 0.01, int4: 0.02}\nmmlu: {margins: *m}\nrouge:\n  <<: *m\n  int4: 0.05\n"
    found = parse_yaml(text)
    assert found["mmlu"]["margins"] == {"fp8": 0.01, "int4": 0.02}
    assert found["rouge"] == {"fp8": 0.01, "int4": 0.05}
    assert parse_yaml(b"a: 2001-99-99\nb: 2024-01-02") == {"a": "2001-99-99", "b": "2024-01-02"}
    assert yaml.safe_load("b: 2024-01-02") == {"b": date(2024, 1, 2)}  # what it would be


class TestFiles:
    def test_a_regular_file_is_read_up_to_its_limit(self, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_bytes(b"[12]")
        (tmp_path / "link").symlink_to(file)
        assert read_regular(file, 4) == read_regular(tmp_path / "link", 4) == b"[12]"
        assert read_json_file(file) == [12]
        with open_regular(file, None) as opened:
            assert opened.read(2) == b"[1"
            assert not os.get_inheritable(opened.fileno())
        for read in (read_regular, open_regular):
            with pytest.raises(UntrustedFileError) as caught:
                read(file, 3)
            assert "3 bytes" in str(caught.value.strerror)
        with pytest.raises(OSError, match="larger"):
            read_json_file(file, limit=3)
        file.write_text('{"names": ["a"]}')
        assert read_record(file, Listed) == Listed(names=("a",))
        with pytest.raises(UntrustedFileError):  # a regular file whose size the kernel tells as 0
            read_regular(Path("/proc/self/maps"), 10)

    @pytest.mark.parametrize("what", ["pipe", "socket", "folder", "device", "link to a pipe"])
    def test_what_is_no_file_is_refused_at_once(self, tmp_path: Path, what: str) -> None:
        place = tmp_path / "a.jsonl"
        if what == "pipe":
            os.mkfifo(place)
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(str(place))
        elif what == "folder":
            place.mkdir()
        elif what == "device":
            place.symlink_to("/dev/zero")
        else:
            os.mkfifo(tmp_path / "pipe")
            place.symlink_to(tmp_path / "pipe")
        started = time.monotonic()
        with pytest.raises(UntrustedFileError):
            read_regular(place, 2**40)
        with pytest.raises(EvaluationDataError) as caught:
            list(read_rows(place))
        assert caught.value.where.endswith("a.jsonl")
        assert time.monotonic() - started < SOON


class TestLines:
    def test_rows_without_nested_values(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, first, second = rows(b'{"score": NaN, "shots": [[1]]}\n{"tokens": [1, 2]}', tmp_path)
        assert first.keys() == {"score"}
        assert second == {"tokens": [1, 2]}
        assert rows(b'{"tokens": [[1]]}', tmp_path)[1] == {}
        monkeypatch.setattr(untrusted, "MAX_VALUES", 3)
        with pytest.raises(UntrustedLinesError, match=" 3 values"):
            rows(b'{"tokens": [1, 2, 3]}', tmp_path)
        monkeypatch.setattr(untrusted, "MAX_ROWS", 2)
        with pytest.raises(UntrustedLinesError, match=" 2 lines"):
            rows(b"{}\n{}\n", tmp_path)

    @pytest.mark.parametrize("what", ["a bomb of empty lines", "a bomb of one line", "a line of ["])
    def test_a_bomb_is_refused_in_bounded_memory(self, tmp_path: Path, what: str) -> None:
        file = tmp_path / "a.jsonl.gz"
        with gzip.open(file, "wb", compresslevel=1) as bomb:
            for _ in range(64 if what != "a line of [" else 5):
                bomb.write((b"\n" if "empty" in what else b"[") * 2**20)
            if what == "a line of [":
                bomb.write(b"\n")
        found = refusal("test_untrusted:all_lines", file)
        assert (found.error or "").startswith("EvaluationDataError")
        assert found.mib < 300
        assert found.seconds < 2 * SOON  # with what other work takes from the caches


def all_lines(path: Path) -> None:
    for _ in read_rows(path):
        pass


def test_a_lint_sends_what_others_wrote_to_the_readers() -> None:
    """Methods, which ruff's `banned-api` cannot name."""
    root = Path(untrusted.__file__).parents[1]
    names = ("artifacts", "eval_gates", "pipeline", "prepare", "recipes")
    files = [file for name in names for file in (root / name).rglob("*.py")]
    assert len(files) > 200
    readers = re.compile(r"\.json\(\)|validate_json\(|JSONDecoder\(|(full|unsafe)_load\(")
    found = [file.name for file in files if readers.search(file.read_text())]
    assert found == ["untrusted.py"]

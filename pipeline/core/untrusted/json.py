"""Reads JSON that others wrote, within limits, and with one meaning.

Python's own reader takes the last of two equal keys, NaN, numbers that overflow to infinity, and
any size and depth: 32 million empty lists fit into 96 MB of text and take 2 GB, and what is nested
900 deep is read, and then ends whoever walks it. Here these are errors.

Standard library only: workers and suites read with it too.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pipeline.core.untrusted.file import MEBIBYTE, open_regular, read_regular

MAX_BYTES = 32 * MEBIBYTE
MAX_VALUES = 1_000_000  # some 250 MB where they are small objects, 1 s
MAX_DEPTH = 64
MAX_ITEM_CHARACTERS = 8_000_000  # of one item of a long list
CHUNK_CHARACTERS = 1_000_000  # read at a time

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class UntrustedJsonError(ValueError):
    """Text that is no JSON, or more, deeper or more ambiguous than is read."""


def read_json_file(path: Path, *, limit: int = MAX_BYTES, finite: bool = True) -> Any:
    """What a foreign JSON file says."""
    return parse_json(read_regular(path, limit), finite=finite)


def parse_json(
    content: bytes | str, *, finite: bool = True, whole_text: bool = True, values: int = MAX_VALUES
) -> Any:
    """What foreign JSON says.

    Args:
        content: text, or its UTF-8; its size is the caller's to bound.
        finite: NaN, Infinity and numbers that overflow are errors. Off for config.json:
            transformers writes `Infinity` into those of Mamba's relatives.
        whole_text: half of a surrogate pair in a text is an error. Off for what models wrote.
        values: the most numbers, texts, lists and objects, keys not counted.
    """
    # Each value but the first follows one of these, so this is never too few.
    if isinstance(content, str):
        least = sum(content.count(mark) for mark in ",[{")
    else:
        least = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if least >= values:
        raise UntrustedJsonError(f"it has more than {values:,} values, the limit")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedJsonError(f"it is not UTF-8 text: {error.reason}") from error
    try:
        found = json.loads(
            text,
            object_pairs_hook=_refuse_repeated,
            parse_constant=_refuse_non_finite if finite else None,
            parse_float=_parse_finite if finite else None,
        )
    except RecursionError as error:
        raise _depth_error() from error
    except UntrustedJsonError:
        raise
    except json.JSONDecodeError as error:
        raise UntrustedJsonError(str(error)) from error
    except ValueError as error:  # Python's limit on the digits of a whole number
        raise UntrustedJsonError("a number in it has thousands of digits") from error
    if _is_deeper(found, MAX_DEPTH):
        raise _depth_error()
    if whole_text and _HALF_PAIR.search(text):
        _check_text(found)
    return found


def read_json_items(path: Path, *, limit: int) -> Iterator[Any]:
    """Each item of the one list that a long foreign JSON file is; the others are not kept.

    Args:
        limit: bytes of the file.
    """
    decoder = json.JSONDecoder(
        object_pairs_hook=_refuse_repeated,
        parse_constant=_refuse_non_finite,
        parse_float=_parse_finite,
    )
    with open_regular(path, limit) as file:
        text = _LongText(io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8"))
        if text.skip() != "[":
            raise UntrustedJsonError("it is no list")
        text.take(1)
        number, mark = 0, text.skip()
        while mark != "]":
            number += 1
            yield text.take_item(decoder, number)
            mark = text.skip()
            if mark not in (",", "]"):
                raise UntrustedJsonError(f"the list does not go on, or end, after item {number}")
            if mark == ",":
                text.take(1)
                text.skip()
        text.take(1)
        if text.skip():
            raise UntrustedJsonError("something follows the list")


class _LongText:
    """A text of which the beginning is there, and of that what was not taken yet."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self._text, self._place = "", 0

    def skip(self) -> str:
        """Go to the next letter that is no space; '' at the end."""
        while True:
            while self._place < len(self._text):
                letter = self._text[self._place]
                if letter not in " \t\r\n":
                    return letter
                self._place += 1
            if not self._read_on():
                return ""

    def take(self, letters: int) -> None:
        self._place += letters

    def take_item(self, decoder: json.JSONDecoder, number: int) -> Any:
        while True:
            try:
                item, end = decoder.raw_decode(self._text, self._place)
            except RecursionError as error:
                raise _depth_error() from error
            except UntrustedJsonError as error:
                raise UntrustedJsonError(f"item {number}: {error}") from error
            except json.JSONDecodeError as error:  # damaged, or not there as a whole
                left = len(self._text) - self._place
                if left > MAX_ITEM_CHARACTERS or not self._read_on(at_least=left):
                    raise UntrustedJsonError(f"item {number}: {error.msg}") from error
            except ValueError as error:
                raise UntrustedJsonError(
                    f"item {number} has a number of too many digits"
                ) from error
            else:
                # A number that ends with what was read may go on.
                if end < len(self._text) or not self._read_on():
                    if _is_deeper(item, MAX_DEPTH - 1):
                        raise _depth_error()
                    if _HALF_PAIR.search(self._text, self._place, end):
                        _check_text(item)
                    self._place = end
                    return item

    def _read_on(self, at_least: int = 0) -> bool:
        try:
            more = self._file.read(max(CHUNK_CHARACTERS, at_least))
        except UnicodeDecodeError as error:
            raise UntrustedJsonError(f"it is not UTF-8 text: {error.reason}") from error
        self._text, self._place = self._text[self._place :] + more, 0
        return bool(more)


def _refuse_repeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for position, key in enumerate(keys) if key in keys[:position])
        raise UntrustedJsonError(f"the key {twice[:80]!a} occurs twice")
    return found


def _refuse_non_finite(word: str) -> NoReturn:
    raise UntrustedJsonError(f"{word} is not a JSON number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UntrustedJsonError(f"the number {text[:40]} is too large")
    return number


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects lie more than `depth` deep; level by level, since they may."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _depth_error() -> UntrustedJsonError:
    return UntrustedJsonError(f"it is nested more than {MAX_DEPTH} deep")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UntrustedJsonError("a text in it has half of a surrogate pair") from error

"""Bounded, unambiguous reading of untrusted JSON.

Python's reader accepts duplicate keys, NaN, overflowing numbers, and any size and depth. 96 MB of
text can hold 32 million empty lists, which take 2 GB; a depth of 900 parses but then overflows the
stack of recursive code. Here these are errors.

Standard library only: workers and suites import this module.
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
MAX_VALUES = 1_000_000  # about 250 MB and 1 s for small objects
MAX_DEPTH = 64
MAX_ITEM_CHARACTERS = 8_000_000  # one item of a long list
CHUNK_CHARACTERS = 1_000_000  # read at a time

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class UntrustedJsonError(ValueError):
    """Text that is not JSON, or is too large, too deep or ambiguous."""


def read_json_file(path: Path, *, limit: int = MAX_BYTES, finite: bool = True) -> Any:
    """Return the value in an untrusted JSON file."""
    return parse_json(read_regular(path, limit), finite=finite)


def parse_json(
    content: bytes | str, *, finite: bool = True, whole_text: bool = True, values: int = MAX_VALUES
) -> Any:
    """Return the value of untrusted JSON.

    Args:
        content: text or UTF-8 bytes; the caller limits its size.
        finite: reject NaN, Infinity and numbers that overflow. Off for config.json: transformers
        writes `Infinity` for Mamba-like models.
        whole_text: reject unpaired surrogates in strings. Off for model output.
        values: limit for numbers, strings, lists and objects, without keys.
    """
    # Each value except the first follows one of these, so this is an upper bound.
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
    except ValueError as error:  # Python's limit on the digits of an integer
        raise UntrustedJsonError("a number in it has thousands of digits") from error
    if _is_deeper(found, MAX_DEPTH):
        raise _depth_error()
    if whole_text and _HALF_PAIR.search(text):
        _check_text(found)
    return found


def read_json_items(path: Path, *, limit: int) -> Iterator[Any]:
    """Yield the items of a large untrusted JSON list, one at a time."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_refuse_repeated,
        parse_constant=_refuse_non_finite,
        parse_float=_parse_finite,
    )
    with open_regular(path, limit) as file:
        text = _LongText(io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8"))
        if text.skip() != "[":
            raise UntrustedJsonError("it is not a list")
        text.take(1)
        number, mark = 0, text.skip()
        while mark != "]":
            number += 1
            yield text.take_item(decoder, number)
            mark = text.skip()
            if mark not in (",", "]"):
                raise UntrustedJsonError(f"expected ',' or ']' after item {number}")
            if mark == ",":
                text.take(1)
                text.skip()
        text.take(1)
        if text.skip():
            raise UntrustedJsonError("something follows the list")


class _LongText:
    """Text that is read in chunks; consumed parts are dropped."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self._text, self._place = "", 0

    def skip(self) -> str:
        """Skip white space; return the next character, or '' at the end."""
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
            except json.JSONDecodeError as error:  # damaged or incomplete
                left = len(self._text) - self._place
                if left > MAX_ITEM_CHARACTERS or not self._read_on(at_least=left):
                    raise UntrustedJsonError(f"item {number}: {error.msg}") from error
            except ValueError as error:
                raise UntrustedJsonError(
                    f"item {number} has a number of too many digits"
                ) from error
            else:
                # A number at the end of the buffer may continue.
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
    """Return whether nesting exceeds `depth`, without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _depth_error() -> UntrustedJsonError:
    return UntrustedJsonError(f"it is nested more than {MAX_DEPTH} deep")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UntrustedJsonError("a string in it has an unpaired surrogate") from error

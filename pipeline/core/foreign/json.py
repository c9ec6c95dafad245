"""Reads JSON that others wrote, within limits, and with one meaning.

Python's own reader takes the last of two equal keys, NaN, numbers that overflow to infinity, and
any size and depth: 32 million empty lists fit into 96 MB of text and take 2 GB, and what is nested
900 deep is read, and then ends whoever walks it. Here these are errors.

Standard library only: workers and suites read with it too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pipeline.core.foreign.file import MEBIBYTE, read_regular

MAX_BYTES = 32 * MEBIBYTE
MAX_VALUES = 1_000_000  # some 250 MB where they are small objects, 1 s
MAX_DEPTH = 64

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class ForeignJsonError(ValueError):
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
        raise ForeignJsonError(f"it has more than {values:,} values, the limit")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForeignJsonError(f"it is not UTF-8 text: {error.reason}") from error
    try:
        found = json.loads(
            text,
            object_pairs_hook=_refuse_repeated,
            parse_constant=_refuse_non_finite if finite else None,
            parse_float=_parse_finite if finite else None,
        )
    except RecursionError as error:
        raise _depth_error() from error
    except ForeignJsonError:
        raise
    except json.JSONDecodeError as error:
        raise ForeignJsonError(str(error)) from error
    except ValueError as error:  # Python's limit on the digits of a whole number
        raise ForeignJsonError("a number in it has thousands of digits") from error
    if _is_deeper(found, MAX_DEPTH):
        raise _depth_error()
    if whole_text and _HALF_PAIR.search(text):
        _check_text(found)
    return found


def _refuse_repeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for position, key in enumerate(keys) if key in keys[:position])
        raise ForeignJsonError(f"the key {twice[:80]!a} occurs twice")
    return found


def _refuse_non_finite(word: str) -> NoReturn:
    raise ForeignJsonError(f"{word} is not a JSON number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ForeignJsonError(f"the number {text[:40]} is too large")
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


def _depth_error() -> ForeignJsonError:
    return ForeignJsonError(f"it is nested more than {MAX_DEPTH} deep")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ForeignJsonError("a text in it has half of a surrogate pair") from error

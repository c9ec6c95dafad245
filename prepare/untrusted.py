"""Bounded, unambiguous readers of untrusted files, JSON, lines and records.

A file that is not regular, too large or unreadable raises an OSError. Damaged, ambiguous or
oversized content raises UntrustedJsonError or UntrustedLinesError, which are ValueErrors.

Standard library and pydantic only, for workers.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound="BaseModel")

MEBIBYTE = 2**20
MAX_NAMES = 20_000  # in one directory
MAX_NAME_BYTES = 255
MAX_DEPTH = 64  # of JSON and YAML: deeper values overflow the stack of recursive code
MAX_JSON_BYTES = 32 * MEBIBYTE
MAX_VALUES = 1_000_000  # of one JSON text: about 250 MB and 1 s for small objects
MAX_RECORD_BYTES = 16 * MEBIBYTE
MAX_RECORD_VALUES = 400_000  # 80,000 files
MAX_FAULT_CHARACTERS = 300
MAX_LINES = 1_000_000
MAX_LINE_CHARACTERS = 8_000_000  # a line is one question or calibration text
MAX_CHARACTERS = 1_000_000_000  # all lines, decompressed
# Recorded answers. MMLU's 14,042 questions with five examples each are 50 MB.
MAX_ROWS = 250_000
MAX_ROWS_CHARACTERS = 128 * MEBIBYTE
MAX_ROW_VALUES = 100_000
COUNTS = ("tokens",)  # of the several answers to one question

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class UntrustedFileError(OSError):
    """A file that is irregular, too large, or has an impossible path."""


class UntrustedJsonError(ValueError):
    """JSON that is invalid, too large, too deep or ambiguous."""


class UntrustedLinesError(ValueError):
    """A text file that is damaged, or has too many or too long lines."""


# --- Files


def open_regular(path: Path, limit: int | None) -> FileIO:
    """Open an untrusted file unbuffered, without blocking; follow links.

    `limit` is the maximum size at opening; a growing file needs `read_regular`.

    UntrustedFileError: it is not regular, too large, or its path has a NUL. OSError: it cannot be
    opened.
    """
    try:
        _check(Path(path).stat(), path, limit)  # opening a device can have effects
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL or an unpaired surrogate
        raise UntrustedFileError(errno.EINVAL, "the path is impossible", str(path)) from error
    try:
        _check(os.fstat(descriptor), path, limit)  # it may have been replaced
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """Return an untrusted file's content, up to `limit`."""
    with open_regular(path, limit) as file:
        parts = []
        left = limit + 1
        while left and (part := file.read(min(left, 16 * MEBIBYTE))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise _size_error(path, limit)
    return b"".join(parts)


def list_names(folder: Path) -> list[str]:
    """Return an untrusted directory's sorted names.

    UntrustedFileError: more than MAX_NAMES entries. OSError: no readable directory.
    """
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > MAX_NAMES:
                reason = f"more than {MAX_NAMES:,} files are in it, the limit"
                raise UntrustedFileError(errno.EFBIG, reason, str(folder))
    return sorted(names)


def is_plain_name(name: str) -> bool:
    """Return whether file systems and terminals can take the name."""
    is_short = name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES
    return is_short and "/" not in name and name not in ("", ".", "..")


def _check(status: os.stat_result, path: Path, limit: int | None) -> None:
    if words := _KINDS.get(stat.S_IFMT(status.st_mode)):
        raise UntrustedFileError(errno.EINVAL, f"it is {words}, not a file", str(path))
    if limit is not None and status.st_size > limit:
        raise _size_error(path, limit)


def _size_error(path: Path, limit: int) -> UntrustedFileError:
    size = f"{limit / MEBIBYTE:g} MiB" if limit >= MEBIBYTE else f"{limit} bytes"
    return UntrustedFileError(errno.EFBIG, f"it is larger than {size}, the limit", str(path))


# --- JSON


def read_json_file(
    path: Path,
    *,
    limit: int = MAX_JSON_BYTES,
    finite: bool = True,
    values: int = MAX_VALUES,
) -> Any:
    """Return the value in an untrusted JSON file."""
    return parse_json(read_regular(path, limit), finite=finite, values=values)


def parse_json(
    content: bytes | str, *, finite: bool = True, whole_text: bool = True, values: int = MAX_VALUES
) -> Any:
    """Return the value of untrusted JSON; the caller limits its size.

    `finite` rejects NaN, Infinity and overflows, and `whole_text` unpaired surrogates. `values`
    limits numbers, strings, lists and objects.
    """
    # Each value except the first follows one of these, so this is an upper bound.
    least = 0
    for mark in ",[{":
        if isinstance(content, str):
            least += content.count(mark)
        else:
            least += content.count(mark.encode())
        if least >= values:
            raise UntrustedJsonError(f"it has more than {values:,} values, the limit")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedJsonError(f"it is not UTF-8 text: {error.reason}") from error
    decoder = json.JSONDecoder(
        object_pairs_hook=_refuse_repeated,
        parse_constant=_refuse_non_finite if finite else None,
        parse_float=_parse_finite if finite else None,
    )
    try:
        value = decoder.decode(text)
    except RecursionError as error:
        raise _depth_error() from error
    except (UntrustedJsonError, json.JSONDecodeError) as error:
        raise UntrustedJsonError(str(error)) from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise UntrustedJsonError("a number in it has thousands of digits") from error
    _check_value(value, text if whole_text else "")
    return value


def parse_json_at(text: str, begin: int) -> Any:
    """Return the JSON value that begins there; any text may follow. Raises as `parse_json`."""
    return parse_json(text[begin : json_end(text, begin)], finite=False, whole_text=False)


def json_end(text: str, begin: int) -> int:
    """Return where the JSON value that begins there ends; its keys may repeat.

    UntrustedJsonError: there is none, or it is cut off or too deep.
    """
    try:
        _, end = json.JSONDecoder().raw_decode(text, begin)
    except RecursionError as error:
        raise _depth_error() from error
    except ValueError as error:
        raise UntrustedJsonError(str(error)) from error
    return end


def _refuse_repeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for position, key in enumerate(keys) if key in keys[:position])
        raise UntrustedJsonError(f"the key {twice[:80]!a} occurs twice")
    return mapping


def _refuse_non_finite(word: str) -> NoReturn:
    raise UntrustedJsonError(f"{word} is not a JSON number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UntrustedJsonError(f"the number {text[:40]} is too large")
    return number


def _check_value(value: Any, text: str) -> None:
    """Check depth, and strings if `text` may have half a surrogate pair."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    if level:
        raise _depth_error()
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise UntrustedJsonError("a string in it has an unpaired surrogate") from error


def _depth_error() -> UntrustedJsonError:
    return UntrustedJsonError(f"it is nested more than {MAX_DEPTH} deep")


# --- Records


def read_record(path: Path, model: type[Model]) -> Model:
    """Return the record in an untrusted file."""
    return parse_record(read_regular(path, MAX_RECORD_BYTES), model)


def parse_record(content: bytes, model: type[Model]) -> Model:
    """Return the record; the caller limits the size.

    Its lists use `fail_fast`: pydantic would collect millions of faults.
    """
    from pydantic import ValidationError

    # Parsed twice: only model_validate_json converts lists to tuples and is otherwise strict.
    parse_json(content, finite=False, whole_text=False, values=MAX_RECORD_VALUES)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise UntrustedJsonError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Return the first fault with its location."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"[:MAX_FAULT_CHARACTERS]


# --- Lines


def read_lines(
    path: Path, *, max_lines: int = MAX_LINES, max_characters: int = MAX_CHARACTERS
) -> Iterator[str]:
    """Yield a UTF-8 file's lines without line ends; `.gz` is decompressed.

    `max_characters` is their decompressed total.
    """
    letters = 0
    number = 0
    with open_regular(path, None) as file:
        content = gzip.GzipFile(fileobj=file) if path.name.endswith(".gz") else file
        lines = io.TextIOWrapper(io.BufferedReader(content), encoding="utf-8-sig")  # Windows
        try:
            while line := lines.readline(MAX_LINE_CHARACTERS + 1):
                number += 1
                letters += len(line)
                if len(line) > MAX_LINE_CHARACTERS:
                    raise UntrustedLinesError(
                        f"line {number} has more than {MAX_LINE_CHARACTERS:,} characters"
                    )
                if letters > max_characters or number > max_lines:
                    raise UntrustedLinesError(
                        f"it has more than {max_lines:,} lines or {max_characters:,} characters"
                    )
                yield line.removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UntrustedLinesError(
                f"it is not UTF-8 from line {_line_of(error, number)} on: {error.reason}; save it "
                "in UTF-8"
            ) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UntrustedLinesError(f"it is damaged after line {number}: {error}") from error


def _line_of(error: UnicodeDecodeError, read: int) -> int:
    """Return the number of the line of an error in the block after so many lines were read."""
    return read + len((error.object[: error.start] + b"x").splitlines())


def read_flat_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield recorded rows without nested values except for lists of counts."""
    kept = 0
    lines = read_lines(path, max_lines=MAX_ROWS, max_characters=MAX_ROWS_CHARACTERS)
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, finite=False, whole_text=False, values=MAX_ROW_VALUES)
        except UntrustedJsonError as error:
            raise UntrustedLinesError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise UntrustedLinesError(f"line {number} is not a JSON object")
        row = {
            key: value
            for key, value in row.items()
            if not isinstance(value, (dict, list)) or (key in COUNTS and _are_counts(value))
        }
        kept += sum(len(value) if isinstance(value, list) else 1 for value in row.values())
        if kept > MAX_VALUES:
            raise UntrustedLinesError(f"it has more than {MAX_VALUES:,} values")
        yield row


def _are_counts(value: dict[str, Any] | list[Any]) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)

"""Bounded reading of recorded answers and questions, one JSON object on each line.

Rows are read one at a time without nested values, except for lists of counts: verdicts and
comparisons need only numbers and strings, and 128 MB of text can contain 40 million lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.json import UntrustedJsonError, parse_json
from pipeline.core.untrusted.lines import UntrustedLinesError, read_lines

# Decompressed size of one file. MMLU's 14,042 questions with five examples each are 50 MB.
MAX_CHARACTERS = 128 * MEBIBYTE
MAX_LINES = 250_000
MAX_VALUES = 1_000_000  # numbers and strings, about 150 MB
_MAX_VALUES_PER_LINE = 100_000
_COUNTS = ("tokens",)  # of the several answers to one question


def read_flat_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows without nested lists and objects, except for lists of counts."""
    kept = 0
    lines = read_lines(path, max_lines=MAX_LINES, max_characters=MAX_CHARACTERS)
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, finite=False, whole_text=False, values=_MAX_VALUES_PER_LINE)
        except UntrustedJsonError as error:
            raise UntrustedLinesError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise UntrustedLinesError(f"line {number} is not a JSON object")
        row = without_nested(row)
        kept += sum(len(value) if isinstance(value, list) else 1 for value in row.values())
        if kept > MAX_VALUES:
            raise UntrustedLinesError(f"it has more than {MAX_VALUES:,} values")
        yield row


def without_nested(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row's numbers and strings, and its lists of counts."""
    return {
        key: value
        for key, value in row.items()
        if not isinstance(value, (dict, list)) or (key in _COUNTS and _are_counts(value))
    }


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)

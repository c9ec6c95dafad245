"""Bounded reading of users' text files, plain or gzipped.

Standard library only: workers and suites import this module.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.untrusted.file import open_regular

MAX_LINE_CHARACTERS = 8_000_000  # a line is one question or calibration text
MAX_CHARACTERS = 1_000_000_000  # all lines, decompressed
MAX_LINES = 1_000_000


class UntrustedLinesError(ValueError):
    """A damaged text file, or one with too many or too long lines."""


def read_lines(
    path: Path, *, max_lines: int = MAX_LINES, max_characters: int = MAX_CHARACTERS
) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line ends; `.gz` files are decompressed.

    Args:
        max_characters: limit for all lines, decompressed.
    """
    letters, number = 0, 0
    with open_regular(path, None) as file:
        content = gzip.GzipFile(fileobj=file) if path.name.endswith(".gz") else file
        lines = io.TextIOWrapper(io.BufferedReader(content), encoding="utf-8")
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
        except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
            raise UntrustedLinesError(f"it is damaged after line {number}: {error}") from error

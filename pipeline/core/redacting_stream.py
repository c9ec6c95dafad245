"""Redaction of a worker's standard output and error, which are its log.

Libraries log whole requests; aiohttp's errors include request headers, for example. The log is part
of the evidence. Standard library only: workers import this module.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from pipeline.core.redaction import redact


class RedactingStream:
    """Text stream that redacts known credentials."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(redact(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def redact_streams() -> None:
    """Redact standard output and error for the rest of this process."""
    sys.stdout, sys.stderr = RedactingStream(sys.stdout), RedactingStream(sys.stderr)

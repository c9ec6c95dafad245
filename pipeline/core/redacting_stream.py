"""A worker's standard output and error, which are its log: libraries write there what they like.

aiohttp's errors, for one, have a request's headers in them, and lm-eval logs such errors whole. The
log goes into the evidence. Standard library only: workers import this.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from pipeline.core.redaction import redact


class RedactingStream:
    """A text stream that writes no credential which is known."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text without its credentials."""
        self.stream.write(redact(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def redact_streams() -> None:
    """From now on, for the rest of this process."""
    sys.stdout, sys.stderr = RedactingStream(sys.stdout), RedactingStream(sys.stderr)

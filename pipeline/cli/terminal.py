"""Standard output and standard error as they reach a person or a CI log.

All output of the command passes here, so no text of a checkpoint, a registry or a model acts on the
terminal or in the log. Colors and bars, by :func:`open_console`, pass unchanged.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from prepare.escape import log_text
from prepare.redaction import RedactingStream, redact

if TYPE_CHECKING:
    from rich.console import Console

# A line's ending that begins a CI command, and the next write's text that would complete it.
_BEGUN = re.compile(r"##[A-Za-z]*\Z")
_COMPLETIONS = {":": re.compile(":"), "x##": re.compile(r"[A-Za-z]*\[")}
_NEVER = re.compile(r"(?!)")


class SanitizedStream(RedactingStream):
    """A text stream that escapes foreign text."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # The part of the current line that decides whether the rest would make it a command.
        self._line = ""

    def write(self, text: str) -> int:
        length = len(text)
        text = redact(text)  # libraries log what they connect with
        rest = text
        first = ""
        if completed := _COMPLETIONS.get(self._line, _NEVER).match(text):
            before = completed[0][:-1]
            rest = text[completed.end() :]
            self._line = "x"
            first = f"{before}\\u{ord(completed[0][-1]):04x}"
        self.stream.write(first + log_text(self._line + rest)[len(self._line) :])
        line = (self._line + rest).rpartition("\n")[2]
        if line.strip() in ("", ":"):
            self._line = line.strip()
        else:
            self._line = "x" + ("##" if _BEGUN.search(line) else "#" * line.endswith("#"))
        return length


class LastingStream(RedactingStream):
    """A text stream that drops output once its reader or terminal is gone.

    A run of hours must not fail because of that.
    """

    def write(self, text: str) -> int:
        with self._until_closed():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._until_closed():
            self.stream.flush()

    @contextmanager
    def _until_closed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_device = stat.S_ISCHR(os.fstat(self.stream.fileno()).st_mode)
            if error.errno != (errno.EIO if is_device else errno.EPIPE):
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)


@contextmanager
def guard_streams() -> Iterator[None]:
    """Sanitize both output streams during the block.

    A closed stream (`>&-`) drops its output.
    """
    kept = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        for stream in kept:  # escape letters that the stream's encoding lacks
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
        lasting = (cast(TextIO, LastingStream(stream or nowhere)) for stream in kept)
        sys.stdout, sys.stderr = map(SanitizedStream, lasting)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = kept


def open_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that sanitizes texts, not its styles."""
    from rich.console import Console
    from rich.segment import Segment

    class SanitizedConsole(Console):
        def render(self, *args: Any, **keywords: Any) -> Any:
            for segment in super().render(*args, **keywords):
                if segment.control:
                    yield segment
                else:
                    yield Segment(log_text(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    below = stream.stream if isinstance(stream, SanitizedStream) else stream
    return SanitizedConsole(file=below, width=width, highlight=False)

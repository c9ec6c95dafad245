"""Progress events: JSON lines that a worker or a stage writes and the command line draws.

One event is one line: ``{"event": "progress", "task": str, "done": int, "total": int | null,
"unit": str}`` or ``{"event": "note", "text": str}`` (something a user should read, such as a
group size that was lowered) or ``{"event": "error", ...}`` as :meth:`PrepareError.to_dict` gives.

Workers import this module inside their own environments: it uses the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from pipeline.core.untrusted.json import UntrustedJsonError, parse_json

EVENTS_FD_VARIABLE = "PREPARE_EVENTS_FD"
_MAX_COUNT = 2**63  # of anything that is counted; a larger one is somebody's text


class Progress(Protocol):
    """Receives the progress of a piece of work."""

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """`task` has finished `done` of `total` `unit`s (total None: not known)."""

    def note(self, text: str) -> None:
        """Report something that the user should read."""


class NullProgress:
    """Drops every event; for library use and tests."""

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Drop the event."""

    def note(self, text: str) -> None:
        """Drop the event."""


class EventWriter:
    """Writes events as JSON lines to a file descriptor; safe from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Write a progress event."""
        self.write({"event": "progress", "task": task, "done": done, "total": total, "unit": unit})

    def note(self, text: str) -> None:
        """Write a note event."""
        self.write({"event": "note", "text": text})

    def write(self, event: dict[str, Any]) -> None:
        """Write one event; a reader that went away is no error of the worker's."""
        line = (json.dumps(event) + "\n").encode()
        with self._lock, contextlib.suppress(OSError):
            while line:  # a signal may interrupt a long one
                line = line[os.write(self._descriptor, line) :]


def worker_progress() -> Progress:
    """The progress sink of a worker: the inherited descriptor, else standard error."""
    descriptor = os.environ.get(EVENTS_FD_VARIABLE)
    return EventWriter(int(descriptor) if descriptor else sys.stderr.fileno())


def reserve_stdout_for_events() -> int:
    """Take standard output for events alone, before a library writes to it; the descriptor of it.

    What anybody else writes there, a program that we start included, goes to standard error.
    """
    descriptor = os.dup(1)  # which no program inherits
    os.dup2(2, 1)
    return descriptor


def read_event(line: bytes) -> Mapping[str, Any]:
    """The event that the line is; an empty one of a line that is none, but somebody's text."""
    try:
        event = parse_json(line, finite=False, whole_text=False)
    except UntrustedJsonError:
        return {}
    return event if isinstance(event, dict) else {}


def forward_progress(event: Mapping[str, Any], progress: Progress) -> None:
    """Tell the progress or the note that the event is; nothing of any other."""
    match event:
        case {
            "event": "progress",
            "task": str(task),
            "done": int(done),
            "total": int() | None as total,
            "unit": str(unit),
        } if 0 <= done <= _MAX_COUNT and 0 <= (total or 0) <= _MAX_COUNT:
            progress.advance(task, done, total, unit)
        case {"event": "note", "text": str(text)}:
            progress.note(text)

"""Progress events: JSON lines from a worker or a stage to the command line.

One line is ``{"event": "progress", "task": str, "done": int, "total": int | null, "unit": str}``,
``{"event": "note", "text": str}``, or ``{"event": "error", ...}`` with `to_dict`'s keys.
Standard library only, for workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from prepare.untrusted import UntrustedJsonError, parse_json

TAKEN = "taken"
ANSWERED = "answered"
"""Kinds of the first and last line of a staying worker on a request."""
EVENTS_FD_VARIABLE = "PREPARE_EVENTS_FD"
_MAX_COUNT = 2**63  # limit of a valid count


class Progress(Protocol):
    """Receiver of progress events."""

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Report progress; total is None if unknown."""

    def note(self, text: str) -> None:
        """Report a message for the user."""


class NullProgress:
    """Progress receiver that drops every event."""

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Drop the event."""

    def note(self, text: str) -> None:
        """Drop the event."""


class EventWriter:
    """Thread-safe writer of JSON lines."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.write({"event": "progress", "task": task, "done": done, "total": total, "unit": unit})

    def note(self, text: str) -> None:
        self.write({"event": "note", "text": text})

    def write(self, event: dict[str, Any]) -> None:
        line = (json.dumps(event) + "\n").encode()
        with self._lock, contextlib.suppress(OSError):
            while line:  # a signal can interrupt a long write
                line = line[os.write(self._descriptor, line) :]


def worker_progress() -> EventWriter:
    """Return a writer to the inherited descriptor, or standard error."""
    descriptor = os.environ.get(EVENTS_FD_VARIABLE)
    return EventWriter(int(descriptor) if descriptor else sys.stderr.fileno())


def read_event(line: bytes) -> Mapping[str, Any]:
    """Parse a line; return {} if it is not JSON."""
    try:
        event = parse_json(line, finite=False, whole_text=False)
    except UntrustedJsonError:
        return {}
    return event if isinstance(event, dict) else {}


def forward_progress(event: Mapping[str, Any], progress: Progress) -> None:
    """Forward a progress or note event; ignore any other."""
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

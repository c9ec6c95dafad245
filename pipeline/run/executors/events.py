"""What a piece of work tells of itself: JSON lines, as `prepare stage run` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from artifacts.run_record import StageReport
from pipeline.core import errors
from pipeline.core.events import Progress
from pipeline.run.executors.executor import Listener


class OtherNodes(Protocol):
    """Those of a piece of work's room on which it is not itself."""

    def begin(self, name: str, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Begin these, one on each, which belong together by that name."""

    def end(self, name: str) -> None:
        """End them."""


class OnlyProgress:
    """Listens for who wants to hear of progress alone."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """See Progress."""
        self._progress.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        """See Progress."""
        self._progress.note(text)

    def stage_ended(self, stage: StageReport) -> None:
        """Nobody wants to hear of it."""


def pass_on(
    lines: Iterable[bytes], listener: Listener, others: OtherNodes | None = None
) -> errors.PrepareError | None:
    """Pass the events on until there are no more; the error that ended the work, if one did.

    Args:
        others: what begins parts of its servers elsewhere, of work on several nodes.
    """
    failure: errors.PrepareError | None = None
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a library printed to standard output; the log has the rest
        if not isinstance(event, dict):
            continue  # it printed a number
        kind = event.pop("event", None)
        if kind == "progress":
            listener.advance(event["task"], event["done"], event["total"], event["unit"])
        elif kind == "note":
            listener.note(event["text"])
        elif kind == "stage":
            listener.stage_ended(StageReport.model_validate(event))
        elif kind == "parts" and others is not None:
            others.begin(event["name"], event["tasks"])
        elif kind == "parts_over" and others is not None:
            others.end(event["name"])
        elif kind == "error":
            failure = errors.from_dict(event)
    return failure

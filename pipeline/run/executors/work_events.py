"""A work item's events: JSON lines, as `prepare task run` writes them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from artifacts.run_record import StageReport
from pipeline.core import errors
from pipeline.core.events import Progress, forward_progress, read_event
from pipeline.run.executors.executor import Listener


class ProgressListener:
    """A listener for progress alone."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self._progress.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        self._progress.note(text)

    def stage_ended(self, stage: StageReport) -> None:
        """Return a listener that ignores all events."""


def pass_on(lines: Iterable[bytes], listener: Listener) -> errors.PrepareError | None:
    """Pass the events on until they end; return the error that ended the work, if any.

    A line that is no event, such as output of another program, is skipped.
    """
    failure: errors.PrepareError | None = None
    for line in lines:
        match read_event(line):
            case {"event": "stage", **report}:
                try:
                    ended = StageReport.model_validate(report)
                except ValidationError:
                    continue
                listener.stage_ended(ended)
            case {"event": "error", "kind": str(), "message": str()} as error:
                failure = errors.from_dict(error)
            case event:
                forward_progress(event, listener)
    return failure

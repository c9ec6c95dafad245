"""Progress output: bars with ETA on a terminal, plain lines in CI, JSON lines with --json.

It goes to standard error; results go to standard output.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.cli.terminal import open_console
from prepare.events import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

PLAIN_LINE_INTERVAL_S = 15.0
# One task's events; a variant of a thousand tensors is verified in seconds, and each advances it.
EVENT_INTERVAL_S = 0.5


@contextmanager
def open_display(*, as_json: bool = False, plain: bool = False) -> Iterator[Progress]:
    """Yield a Progress on standard error; `plain` means lines."""
    if as_json:
        yield JsonLines()
    elif sys.stderr.isatty() and not plain:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        with Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
            TimeRemainingColumn(),
            console=open_console(stderr=True),
            transient=True,
        ) as bars:
            yield TerminalBars(bars)
    else:
        yield PlainLines()


class TerminalBars:
    """Rich bars that disappear when finished; notes stay."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(
                task, total=total, unit=unit, eta="eta" if total else ""
            )
        self._bars.update(self._tasks[task], completed=done, total=total)
        if total is not None and done >= total:
            self._bars.remove_task(self._tasks.pop(task))

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)


class PlainLines:
    """Occasional lines, for logs."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[float, float]] = {}  # of the start and the last line

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Print at intervals, and at the end of what took a while."""
        now = time.monotonic()
        started, last = self._times.setdefault(task, (now, now))
        finished = total is not None and done >= total
        if finished:
            del self._times[task]
        if now - last < PLAIN_LINE_INTERVAL_S and not (finished and now - started >= 1):
            return
        if not finished:
            self._times[task] = started, now
        of = f"/{total}" if total is not None else ""
        eta = ""
        if total and 0 < done < total:
            eta = f", eta {(now - started) / done * (total - done):.0f} s"
        took = f", {now - started:.0f} s" if unit != "s" else ""
        print(f"  {task}: {done}{of} {unit}{took}{eta}", file=sys.stderr)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class JsonLines:
    """Events as JSON lines, for programs."""

    def __init__(self) -> None:
        self._printed: dict[str, float] = {}

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Print the first, the last and some events."""
        now = time.monotonic()
        finished = total is not None and done >= total
        if not finished and now - self._printed.get(task, -math.inf) < EVENT_INTERVAL_S:
            return
        self._printed[task] = now
        self._print({"event": "progress", "task": task, "done": done, "total": total, "unit": unit})

    def note(self, text: str) -> None:
        self._print({"event": "note", "text": text})

    def _print(self, event: dict[str, object]) -> None:
        print(json.dumps(event) + "\n", end="", file=sys.stderr, flush=True)

"""The record of server starts: each start of an arm, over all commands.

A server that fails in some of its starts would pass if it were measured until it works. So each
start is recorded before it begins, and the second failure ends the arm's speed gates.

    STORE/starts/<arm>/<number>.json    one file a start, never collected

A start that failed before the arm's first good start is told and ends no gate: its installation may
be incomplete. A killed start has no end, and is no failure.

An endpoint's start is its use by one command, up to a failure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.speed.rules import StartCount
from prepare.errors import StoreError, raise_as
from prepare.private_files import create_exclusively, make_folder, write_atomically
from prepare.record import Record
from prepare.store import Store
from prepare.untrusted import read_record

UNREADABLE = "a record of a server's start cannot be read"
RESTORE = "restore it: without it the number of failed starts is not known"
State = Literal["begun", "ready", "disturbed", "failed"]


class ServerStart(Record):
    """One file of the record."""

    is_ours: bool = Field(True, description="false of an endpoint, which a command uses")

    number: int = Field(ge=1, description="of the start of this arm")
    measurements: list[str] = Field(
        [], fail_fast=True, description="digests of those that it served; none for questions alone"
    )
    run: str = Field("", description="id of the run")
    when: str = Field("", description="time of the start, UTC")
    state: State = Field(
        "begun",
        description="ready: it served; disturbed: something outside kept it from starting; failed: "
        "it did not start, ended under load, or an endpoint did not answer",
    )
    was_ready: bool = Field(False, description="whether it served before it failed")
    why: str = Field("", max_length=2000, description="of a failure")


class StartLedger:
    """One arm's starts in a store; StoreError if a file is damaged or cannot be written.

    `arm` is the key of its sanity stage, so of the served model.
    """

    def __init__(self, store: Store, arm: str) -> None:
        self._root = store.root / "starts"
        self._folder = self._root / arm

    def begin(self, measurement: str, run: str, *, is_ours: bool = True) -> ServerStart:
        """Record a start durably, before it begins."""
        with raise_as(StoreError, "the server's start cannot be recorded", self._folder):
            for folder in (self._root.parent, self._root, self._folder):
                make_folder(folder)
            number = len(self.starts()) + 1
            while True:  # several copies may start the same arm
                start = ServerStart(
                    is_ours=is_ours,
                    number=number,
                    measurements=[measurement] if measurement else [],
                    run=run,
                    when=datetime.now(UTC).isoformat(timespec="seconds"),
                )
                if create_exclusively(self._path(number), start.model_dump_json().encode()):
                    return start
                number += 1

    def note(self, start: ServerStart, state: State, why: str = "") -> ServerStart:
        """Record what became of the start."""
        was_ready = start.was_ready or state == "ready"
        changes = {"state": state, "was_ready": was_ready, "why": why[:2000]}
        return self._change(start, changes)

    def note_measurement(self, start: ServerStart, measurement: str) -> ServerStart:
        """Record that the start serves a measurement, too."""
        if measurement in start.measurements:
            return start
        return self._change(start, {"measurements": [*start.measurements, measurement]})

    def _change(self, start: ServerStart, changes: dict[str, Any]) -> ServerStart:
        changed = start.model_copy(update=changes)
        with raise_as(StoreError, "the server's start cannot be recorded", self._folder):
            write_atomically(self._path(start.number), changed.model_dump_json())
        return changed

    def starts(self) -> list[ServerStart]:
        """Return all starts by number."""
        starts: list[ServerStart] = []
        for path in sorted(self._folder.glob("[!.]*.json")):
            with raise_as(StoreError, UNREADABLE, path, RESTORE, errors=(OSError, ValueError)):
                start = read_record(path, ServerStart)
                starts.append(start)
                if start.number != len(starts):
                    raise ValueError(f"the record of start {len(starts)} is gone")
        return starts

    def count(self, measurement: str = "") -> StartCount:
        """Count the starts that have an end; of one measurement, or all."""
        starts = [start for start in self.starts() if start.state in ("ready", "failed")]
        first = next((n for n, start in enumerate(starts) if start.was_ready), len(starts))
        early = starts[:first]
        counted = starts[first:]
        if measurement:
            early = []
            counted = [start for start in starts if measurement in start.measurements]
        failed = [start for start in counted if start.state == "failed"]
        return StartCount(
            tried=len(counted),
            failed=len(failed),
            early=len(early),
            why=next((start.why for start in reversed([*early, *failed])), ""),
            is_ours=all(start.is_ours for start in starts),
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.json"

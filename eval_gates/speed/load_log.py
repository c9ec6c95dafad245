"""Log of one measurement's loads, which survives kills, server crashes and full disks.

Without it, each server run would be a new chance of lucky loads.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from eval_gates.speed.load_run import LOADS, LoadRun, format_lines, parse_loads
from pipeline.core.errors import StoreError
from pipeline.core.record import Record
from pipeline.core.store import write_atomically

IN_PROGRESS = "in_progress.json"


class MeasurementInProgress(Record):
    """A measurement that has not ended."""

    seed: int = Field(description="of all its traffic")
    depends_on: dict[str, str] = Field(
        description="digests of what the measured servers serve; other loads are dropped"
    )
    server_runs: int = Field(0, description="number of server runs that were started")


class LoadLog:
    """The load log in a stage's directory."""

    def __init__(self, folder: Path) -> None:
        self._loads, self._begun = folder / LOADS, folder / IN_PROGRESS

    def open(self, rests_on: Mapping[str, str]) -> MeasurementInProgress:
        """Return the measurement in progress on these inputs, or start one with a new seed.

        A running server may have cached the prompts of an earlier seed. StoreError if damaged.
        """
        measurement = self.in_progress()
        if measurement is None or measurement.depends_on != dict(rests_on):
            self._loads.unlink(missing_ok=True)
            measurement = MeasurementInProgress(
                seed=secrets.randbits(63), depends_on=dict(rests_on)
            )
            self._save(measurement)
        return measurement

    def in_progress(self) -> MeasurementInProgress | None:
        try:
            return MeasurementInProgress.model_validate_json(self._begun.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StoreError(
                "the record of a measurement in progress is damaged",
                where=str(self._begun),
                hint="delete the file to measure again",
            ) from error

    def loads(self) -> list[LoadRun]:
        try:
            return parse_loads(self._lines())
        except ValueError as error:
            raise StoreError(
                f"recorded loads cannot be read: {error}",
                where=str(self._loads),
                hint="delete the file to have them measured again",
            ) from error

    def start_server_run(
        self, measurement: MeasurementInProgress, loads: int
    ) -> MeasurementInProgress:
        """Count a start, and keep so many loads."""
        begun = measurement.model_copy(update={"server_runs": measurement.server_runs + 1})
        self._save(begun)
        self.cut(loads)
        return begun

    def cut(self, loads: int) -> None:
        """Keep so many loads."""
        retained = b"".join(line + b"\n" for line in self._lines()[:loads])
        with self._loads.open("a+b") as file:
            file.truncate(len(retained))

    def append(self, loads: Iterable[LoadRun]) -> None:
        with self._loads.open("a", encoding="utf-8") as file:
            file.writelines(format_lines(loads))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[bytes]:
        try:
            content = self._loads.read_bytes()
        except FileNotFoundError:
            return []
        return content.split(b"\n")[:-1]  # the last part is empty or incomplete

    def _save(self, measurement: MeasurementInProgress) -> None:
        write_atomically(self._begun, measurement.model_dump_json())

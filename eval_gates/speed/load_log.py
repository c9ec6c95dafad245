"""All loads of one measurement so far, whatever ended it: a kill, a dying server, a full disk.

Thrown away with each life of the servers, they would give another chance of lucky ones to whoever
measures until it looks good.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from eval_gates.speed.load_run import LOADS, LoadRun, lines_of, parse_loads
from pipeline.core.errors import StoreError
from pipeline.core.record import Record
from pipeline.core.store import write_atomically

BEGUN = "begun.json"


class MeasurementInProgress(Record):
    """What is known of a measurement before it is over."""

    seed: int = Field(description="that all its traffic is drawn with")
    depends_on: dict[str, str] = Field(
        description="digests of what the measured servers serve: of others nothing is kept"
    )
    server_runs: int = Field(0, description="of the servers, that were begun")
    began: list[int] = Field(
        [0], min_length=1, description="first life of each run that may replace lost units"
    )


class LoadLog:
    """The loads in the folder of one stage."""

    def __init__(self, folder: Path) -> None:
        self._loads, self._begun = folder / LOADS, folder / BEGUN

    def open(self, rests_on: Mapping[str, str]) -> MeasurementInProgress:
        """What was begun there on these inputs; else an empty book with a seed drawn anew.

        A server that runs on may remember the prompts of another measurement.

        Raises:
            StoreError: what was kept of it is damaged; to begin anew would be another chance.
        """
        begun = self.begun()
        if begun is None or begun.depends_on != dict(rests_on):
            self._loads.unlink(missing_ok=True)
            begun = MeasurementInProgress(seed=secrets.randbits(63), depends_on=dict(rests_on))
            self._keep(begun)
        return begun

    def begun(self) -> MeasurementInProgress | None:
        """What was begun there; raises StoreError where it is damaged."""
        try:
            return MeasurementInProgress.model_validate_json(self._begun.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StoreError(
                "what was kept of a measurement that had begun is damaged",
                where=str(self._begun),
                hint="delete the file: the next measurement has a smaller share of the error rate",
            ) from error

    def loads(self) -> list[LoadRun]:
        """All that were written whole, in the order of measuring.

        Raises:
            StoreError: the file is damaged.
        """
        try:
            return parse_loads(self._lines())
        except ValueError as error:
            raise StoreError(
                f"loads that were kept cannot be read: {error}",
                where=str(self._loads),
                hint="delete the file to have them measured again",
            ) from error

    def begin_life(self, begun: MeasurementInProgress, loads: int) -> None:
        """Note that servers are there that go on after so many loads; what follows is cut off."""
        self._keep(begun.model_copy(update={"server_runs": begun.server_runs + 1}))
        kept = b"".join(line + b"\n" for line in self._lines()[:loads])
        with self._loads.open("a+b") as file:
            file.truncate(len(kept))

    def allow_another_run(self, begun: MeasurementInProgress) -> None:
        """Let the next run continue, with a budget of its own, what disturbances kept open."""
        self._keep(begun.model_copy(update={"began": [*begun.began, begun.server_runs]}))

    def append(self, loads: Iterable[LoadRun]) -> None:
        """Add loads and flush them to disk."""
        with self._loads.open("a", encoding="utf-8") as file:
            file.writelines(lines_of(loads))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[bytes]:
        try:
            content = self._loads.read_bytes()
        except FileNotFoundError:
            return []
        return content.split(b"\n")[:-1]  # what follows the last is torn, or nothing

    def _keep(self, begun: MeasurementInProgress) -> None:
        write_atomically(self._begun, begun.model_dump_json())

"""A stage that sleeps, and tells a journal when it began and ended."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage


class SleepParameters(Record):
    """How long, and what tells it from others."""

    name: str
    seconds: float


class SleepRuntime(Record):
    """Where it is told."""

    journal: str = Field(description="file to which each sleep appends a line when it begins")


class SleepResult(Record):
    """When it was, by the clock of the node; and of what it wrote."""

    began: float
    ended: float
    digest: str


SLEEP_STAGE = Stage("sleep_stage", 1, SleepParameters, SleepRuntime, SleepResult)

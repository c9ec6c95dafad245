"""One measured load on one endpoint, and the log of loads.

Times are seconds since the load's start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from eval_gates.gate_result import Side
from prepare.errors import StoreError, raise_as
from prepare.private_files import write_atomically
from prepare.record import Record
from prepare.untrusted import MEBIBYTE, UntrustedJsonError, parse_record, read_lines

LOADS = "loads.jsonl"
IN_PROGRESS = "in_progress.json"
MAX_LOADS = 20_000
MAX_CHARACTERS = 64 * MEBIBYTE  # of one gate: about 700,000 requests
CHARACTERS_PER_REQUEST = 80  # three times of 17 digits, two counts and no error
MAX_REQUESTS = 50_000  # of one load: six values each, within the limit of a record
MIN_LOAD_WAVES = 10  # at a fixed concurrency: eight count; the first and the last are cut off
LENGTH_FACTOR = 1.2  # such loads are sized by a short one, and should not come out too short

Seconds = Annotated[float, Field(ge=0, le=1e7)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=300)]


class NumericRecord(Record):
    """Record with strict numbers: no strings, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RequestColumns(NumericRecord):
    """Requests by column, in the order of sending."""

    start_s: list[Seconds] = Field(max_length=MAX_REQUESTS, fail_fast=True)
    ttft_s: list[Seconds | None] = Field(
        fail_fast=True, description="from start to the first token; None for a failed request"
    )
    end_s: list[Seconds | None] = Field(
        fail_fast=True, description="time of the last token; None for a failed request"
    )
    input_tokens: list[Count] = Field(fail_fast=True)
    output_tokens: list[Count] = Field(fail_fast=True, description="0 for a failed request")
    error: list[Text | None] = Field(fail_fast=True, description="why it failed; otherwise None")

    @model_validator(mode="after")
    def _validate_columns(self) -> RequestColumns:
        columns = {name: getattr(self, name) for name in type(self).model_fields}
        lengths = {len(column) for column in columns.values()}
        if lengths != {len(self.start_s)}:
            raise ValueError("the columns of the requests differ in length")
        for start, ttft, end, _, tokens, error in zip(*columns.values(), strict=True):
            if error is not None:
                if tokens or ttft is not None or end is not None:
                    raise ValueError("a failed request has timings or tokens")
            elif ttft is None or end is None or not tokens:
                raise ValueError("a request has neither an error nor all timings")
            elif end < start:
                raise ValueError("a request ends before it starts")
        return self

    def __len__(self) -> int:
        return len(self.start_s)


class EngineCounters(NumericRecord):
    """The engine's counters; None for one that it lacks."""

    prefix_cache_queries: Count | None = Field(None, description="prompt tokens looked up")
    prefix_cache_hits: Count | None = Field(None, description="of these, found in the cache")
    preemptions: Count | None = None
    drafts: Count | None = Field(None, description="of speculative decoding")
    draft_tokens: Count | None = None
    accepted_tokens: Count | None = Field(None, description="of the draft tokens")


class Interference(NumericRecord):
    """Disturbance on the machine."""

    kind: Literal["throttled", "other_process"]
    what: Text = Field(description="as the driver reports it")


class LoadRun(NumericRecord):
    """One load of a block."""

    side: Side
    workload: str = Field(max_length=100, description="name of the workload")
    block: Count = Field(description="number of the block, from 0")
    order: Count = Field(description="place of this side in the block, from 0")
    server_run: Count = Field(description="how often the block was begun before")
    seed: Count = Field(description="of prompts and arrivals; each block has another one")
    prompts_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="digest of all prompts")
    arrivals: Literal["concurrency", "rate"]
    concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None, description="requests in flight; None unless arrivals are 'concurrency'"
    )
    rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="declared requests per second; None unless arrivals are 'rate'"
    )
    warmup_s: Seconds | None = Field(
        None, description="for a rate: the time cut off at the start; otherwise None"
    )
    measured_s: Annotated[float, Field(gt=0, le=1e7)] | None = Field(
        None, description="for a rate: the time after it that counts; otherwise None"
    )
    started: Annotated[float, Field(ge=0)] = Field(description="unix time, seconds")
    seconds: Seconds = Field(description="from the first request to the last answer")
    requests: RequestColumns
    before: EngineCounters | None = Field(None, description="None if the engine has no counters")
    after: EngineCounters | None = None
    client_lag_s: Seconds | None = Field(
        None, description="99th percentile of the lag of the client's event loop"
    )
    client_late_s: Seconds | None = Field(
        None, description="total time that the client's event loop was late; None: not measured"
    )
    runnable: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        None, description="mean number of runnable threads on the client's machine"
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(None, description="of that machine")
    interference: list[Interference] = Field([], fail_fast=True, max_length=100)

    @model_validator(mode="after")
    def _validate_arrivals(self) -> LoadRun:
        for kind, names in (
            ("concurrency", ("concurrency",)),
            ("rate", ("rate", "warmup_s", "measured_s")),
        ):
            if any((getattr(self, name) is not None) != (self.arrivals == kind) for name in names):
                raise ValueError(f"exactly loads with arrivals '{kind}' have {', '.join(names)}")
        return self


def format_lines(loads: Iterable[LoadRun]) -> Iterator[str]:
    """Yield each load as JSON."""
    for load in loads:
        yield load.model_dump_json() + "\n"


def read_loads(file: Path) -> list[LoadRun]:
    """Read the loads of a file, maybe gzipped."""
    return parse_loads(read_lines(file, max_lines=MAX_LOADS, max_characters=MAX_CHARACTERS))


def parse_loads(lines: Iterable[str | bytes]) -> list[LoadRun]:
    """Parse the lines of a `loads.jsonl`."""
    loads = []
    for number, line in enumerate(lines, start=1):
        try:
            content = line.encode() if isinstance(line, str) else line
            loads.append(parse_record(content, LoadRun))
        except UntrustedJsonError as error:
            raise ValueError(f"line {number} is no load: {error}") from error
    return loads


class Measurement(Record):
    """A block in progress."""

    seed: int = Field(description="of the measurement's traffic")
    starts: int = Field(0, description="number of times that it was begun")


class LoadLog:
    """A block's loads in its stage's folder, or a gate's collected ones.

    A kill keeps the number of beginnings, so it is no chance of better loads. StoreError for a
    damaged file.
    """

    def __init__(self, folder: Path) -> None:
        self._loads = folder / LOADS
        self._begun = folder / IN_PROGRESS

    def open(self, seed: int) -> Measurement:
        """Return the block in progress, or a new one."""
        hint = "delete the file to measure again"
        with raise_as(StoreError, "it is damaged", self._begun, hint, errors=(ValueError,)):
            if self._begun.exists():
                return parse_record(self._begun.read_bytes(), Measurement)
        return Measurement(seed=seed)

    def start(self, measurement: Measurement, loads: int) -> Measurement:
        """Count a start durably, and keep the first loads."""
        begun = measurement.model_copy(update={"starts": measurement.starts + 1})
        write_atomically(self._begun, begun.model_dump_json())
        self.cut(loads)
        return begun

    def loads(self) -> list[LoadRun]:
        hint = "delete the file to have them measured again"
        with raise_as(StoreError, "loads cannot be read", self._loads, hint, errors=(ValueError,)):
            return parse_loads(self._lines())

    def cut(self, loads: int) -> None:
        """Keep the first loads."""
        retained = b"".join(line + b"\n" for line in self._lines()[:loads])
        with self._loads.open("a+b") as file:
            file.truncate(len(retained))

    def append(self, loads: Iterable[LoadRun]) -> None:
        with self._loads.open("a", encoding="utf-8") as file:
            file.writelines(format_lines(loads))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[bytes]:
        content = self._loads.read_bytes() if self._loads.exists() else b""
        return content.split(b"\n")[:-1]  # the last part is empty or incomplete

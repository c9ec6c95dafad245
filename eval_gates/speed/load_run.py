"""One load on one endpoint as it was measured: what every verdict on speed is computed from.

A block has two such loads, one a side with the same prompts; a round of an SLO has one. Times are
seconds of the client's monotonic clock since the load began. Of a request's tokens the first and
the last have a time; those between are taken to be evenly spread, so that an hour of loads fits
into evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from pipeline.core.record import Record
from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.json import UntrustedJsonError
from pipeline.core.untrusted.lines import read_lines
from pipeline.core.untrusted.record import parse_record

LOADS = "loads.jsonl"
MAX_LOADS = 20_000
MAX_LETTERS = 64 * MEBIBYTE  # of one claim: some 700,000 requests
LETTERS_OF_A_REQUEST = 96  # four times of 17 digits, two counts and no error, by column
MAX_REQUESTS = 50_000  # of one load: eight values each, within what a record may hold
# At least, of a load of a fixed concurrency: eight count, the first and the last are cut off.
WAVES = 10
SPARE = 1.2  # such loads are sized by a short one, and should not come out too short

Side = Literal["baseline", "candidate"]
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=300)]


class NumericRecord(Record):
    """A record of numbers that are numbers: no texts for them, no NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RequestColumns(NumericRecord):
    """The requests of a load, by column, in the order of sending."""

    start_s: list[Seconds] = Field(max_length=MAX_REQUESTS, fail_fast=True)
    ttft_s: list[Seconds | None] = Field(
        fail_fast=True, description="from start to the first token; None of a failed request"
    )
    end_s: list[Seconds | None] = Field(
        fail_fast=True, description="when the last token came; None of a failed request"
    )
    longest_pause_s: list[Seconds | None] = Field(
        fail_fast=True, description="between two tokens; None of a failed request, 0 with one token"
    )
    input_tokens: list[Count] = Field(fail_fast=True)
    output_tokens: list[Count] = Field(fail_fast=True, description="0 of a failed request")
    error: list[Text | None] = Field(fail_fast=True, description="why it failed; else None")

    @model_validator(mode="after")
    def _columns_fit_together(self) -> RequestColumns:
        columns = {name: getattr(self, name) for name in type(self).model_fields}
        lengths = {len(column) for column in columns.values()}
        if lengths != {len(self.start_s)}:
            raise ValueError("the columns of the requests are not of one length")
        for start, ttft, end, pause, tokens, error in zip(
            self.start_s,
            self.ttft_s,
            self.end_s,
            self.longest_pause_s,
            self.output_tokens,
            self.error,
            strict=True,
        ):
            if error is not None:
                if tokens or ttft is not None or end is not None or pause is not None:
                    raise ValueError("a failed request has timings, or tokens")
            elif ttft is None or end is None or pause is None or not tokens:
                raise ValueError("a request has neither an error nor all timings")
            elif end < start:
                raise ValueError("a request ends before it starts")
        return self

    def __len__(self) -> int:
        return len(self.start_s)


class EngineCounters(NumericRecord):
    """What the engine's own counters said at one moment; None where it has no such counter."""

    prefix_cache_queries: Count | None = Field(None, description="prompt tokens looked up")
    prefix_cache_hits: Count | None = Field(None, description="of these, found in the cache")
    preemptions: Count | None = None
    drafts: Count | None = Field(None, description="of speculative decoding")
    draft_tokens: Count | None = None
    accepted_tokens: Count | None = Field(None, description="of the draft tokens")


class QueueSamples(NumericRecord):
    """The engine's queue while the load ran, by column, in the order of looking."""

    at_s: list[Seconds] = Field([], max_length=MAX_REQUESTS, fail_fast=True)
    running: list[Count] = Field([], fail_fast=True)
    waiting: list[Count] = Field([], fail_fast=True)

    @model_validator(mode="after")
    def _columns_are_as_long(self) -> QueueSamples:
        if not len(self.at_s) == len(self.running) == len(self.waiting):
            raise ValueError("the columns of the samples are not of one length")
        return self


class Interference(NumericRecord):
    """Something on the machine that makes a load one of another machine."""

    kind: Literal["throttled", "other_process"]
    what: Text = Field(description="in words, as the driver says it")


class LoadRun(NumericRecord):
    """One side of a block, or one round."""

    side: Side
    workload: str = Field(max_length=100, description="name of the workload")
    block: Count = Field(description="number of the block or round, from 0")
    order: Literal[0, 1] = Field(
        description="0: a round, or this side of the block or pair went first"
    )
    server_run: Count = Field(
        description="which life of the servers it was, from 0, of all that were begun"
    )
    seed: Count = Field(description="of prompts and arrivals; another one each block")
    prompts_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of all that was asked")
    arrivals: Literal["concurrency", "rate", "trace"]
    concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None, description="requests in flight; None where arrivals are not 'concurrency'"
    )
    rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="requests a second as declared; None where arrivals are not 'rate'"
    )
    warmup_s: Seconds | None = Field(
        None, description="of a rate or trace: the time cut off at the start; else None"
    )
    measured_s: Annotated[float, Field(gt=0, le=1e7)] | None = Field(
        None, description="of a rate or trace: the time after it that counts; else None"
    )
    started: Annotated[float, Field(ge=0)] = Field(description="unix time, seconds")
    seconds: Seconds = Field(description="from the first request until the last was answered")
    requests: RequestColumns
    before: EngineCounters | None = Field(None, description="None where the engine reports nothing")
    after: EngineCounters | None = None
    samples: QueueSamples = QueueSamples()
    client_lag_s: Seconds | None = Field(
        None, description="99th percentile of how late the client's own event loop was"
    )
    runnable: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        None, description="threads that were ready to run on the client's machine, on average"
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(None, description="of that machine")
    interference: list[Interference] = Field([], fail_fast=True, max_length=100)

    @model_validator(mode="after")
    def _arrivals_are_declared(self) -> LoadRun:
        if (self.arrivals == "concurrency") != (self.concurrency is not None):
            raise ValueError("'concurrency' is of arrivals 'concurrency', and of these alone")
        if (self.arrivals == "rate") != (self.rate is not None):
            raise ValueError("'rate' is of arrivals 'rate', and of these alone")
        timed = self.warmup_s is not None and self.measured_s is not None
        if (self.arrivals == "concurrency") == timed:
            raise ValueError(
                "'warmup_s' and 'measured_s' are of a rate or trace, and of these alone"
            )
        return self


def has_room(loads: Sequence[LoadRun], unit: int) -> bool:
    """Whether so many more loads, each twice the largest, fit into the evidence that is read.

    Who measured on would have evidence of hours that nobody could judge.
    """
    letters = [
        len(load.requests) * LETTERS_OF_A_REQUEST + sum(len(e) for e in load.requests.error if e)
        for load in loads
    ]
    return sum(letters) + 2 * unit * max(letters, default=0) <= MAX_LETTERS


def lines_of(loads: Iterable[LoadRun]) -> Iterator[str]:
    """The loads as JSON, a line each with its end."""
    for load in loads:
        yield load.model_dump_json() + "\n"


def read_loads(file: Path) -> list[LoadRun]:
    """The loads in a file, gzipped where its name ends in .gz.

    Raises:
        ValueError: it is damaged, or too long; names the line.
        OSError: it is no regular file, or cannot be read.
    """
    return parse_loads(read_lines(file, max_lines=MAX_LOADS, max_characters=MAX_LETTERS))


def parse_loads(lines: Iterable[str | bytes]) -> list[LoadRun]:
    """The loads of a `loads.jsonl`.

    Raises:
        ValueError: a line is no such load; names it.
    """
    loads = []
    for number, line in enumerate(lines, start=1):
        try:
            content = line.encode() if isinstance(line, str) else line
            loads.append(parse_record(content, LoadRun))
        except UntrustedJsonError as error:
            raise ValueError(f"line {number} is no measured load: {error}") from error
    return loads

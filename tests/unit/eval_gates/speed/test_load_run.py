"""Measured loads: written as a line, read back, and refused where they contradict themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from measured_loads import load_in_waves

from eval_gates.speed.load_run import (
    MAX_CHARACTERS,
    EngineCounters,
    Interference,
    RequestColumns,
    fits_evidence,
    format_lines,
    parse_loads,
)

FAILED = {
    "start_s": [0.0],
    "ttft_s": [None],
    "end_s": [None],
    "input_tokens": [20],
    "output_tokens": [0],
    "error": ["HTTP 500"],
}


def test_a_line_is_read_back_as_it_was() -> None:
    """With counters, disturbances and a request that failed."""
    loads = [
        load_in_waves(),
        load_in_waves(
            requests=FAILED,
            before=EngineCounters(prefix_cache_queries=10, prefix_cache_hits=5),
            after=EngineCounters(prefix_cache_queries=30, prefix_cache_hits=20),
            client_lag_s=0.002,
            interference=[Interference(kind="throttled", what="power cap")],
        ),
    ]
    lines = list(format_lines(loads))
    assert [line.count("\n") for line in lines] == [1, 1]
    assert parse_loads(lines) == loads
    assert parse_loads([line.encode() for line in lines]) == loads


def test_a_load_of_a_rate_says_what_counts() -> None:
    """Without its warm-up and measured time nobody could cut it again."""
    timed = {"arrivals": "rate", "concurrency": None, "rate": 2.0}
    load = load_in_waves(**timed, warmup_s=2.0, measured_s=5.0)
    assert parse_loads(format_lines([load])) == [load]
    for wrong in (
        timed,
        {**timed, "warmup_s": 2.0},
        {**timed, "rate": None, "warmup_s": 2.0, "measured_s": 5.0},
        {"warmup_s": 2.0, "measured_s": 5.0},
        {"concurrency": None},
    ):
        with pytest.raises(ValueError, match=r"arrivals|measured_s"):
            load_in_waves(**wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"start_s": [0.0, 1.0]},
        {"output_tokens": [3]},
        {"error": [None]},
        {"end_s": [1.0]},
        {"start_s": [-1.0]},
        {"start_s": ["0"]},
        {"unknown": []},
    ],
    ids=lambda change: "-".join(change),
)
def test_contradictions_name_the_line(change: dict[str, Any]) -> None:
    """A damaged record is refused, never judged."""
    good = next(iter(format_lines([load_in_waves(requests=FAILED)])))
    bad = json.loads(good)
    bad["requests"].update(change)
    with pytest.raises(ValueError, match="line 2"):
        parse_loads([good, json.dumps(bad)])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"side": "both"}'])
def test_what_is_no_load_is_refused(text: str) -> None:
    """Also empty lines."""
    with pytest.raises(ValueError, match="line 1"):
        parse_loads([text])


def test_numbers_are_numbers() -> None:
    """Nothing is computed from NaN or infinity."""
    line = next(iter(format_lines([load_in_waves()])))
    for number in ("NaN", "Infinity", "1e999"):
        with pytest.raises(ValueError, match="line 1"):
            parse_loads([line.replace('"seconds":10.0', f'"seconds":{number}')])


@pytest.mark.parametrize("failing", [0, 5_000])
def test_what_there_is_room_for_is_read(failing: int) -> None:
    """Another unit of twice that size is."""
    many = 20_000
    none, some = [None] * failing, many - failing
    load = load_in_waves(
        requests=RequestColumns(
            start_s=[1234.123456789012345] * many,
            ttft_s=[*none, *[0.123456789012345678] * some],
            end_s=[*none, *[1234.9123456789012345] * some],
            input_tokens=[1_000] * many,
            output_tokens=[*[0] * failing, *[100] * some],
            error=[*["x" * 300] * failing, *[None] * some],
        )
    )
    letters = len(next(iter(format_lines([load]))))
    most = next(n for n in range(1, 100) if not fits_evidence([load] * n, unit=2))
    assert fits_evidence([], unit=2)
    assert letters * (most - 1 + 2 * 2) <= MAX_CHARACTERS < letters * (most + 2 * 2) * 1.3

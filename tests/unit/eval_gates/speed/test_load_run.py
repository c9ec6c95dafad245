"""Measured loads: written as a line, read back, and refused where they contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured_loads import blocks, load_in_waves

from eval_gates.speed.load_run import (
    IN_PROGRESS,
    LOADS,
    MAX_CHARACTERS,
    EngineCounters,
    Interference,
    LoadLog,
    RequestColumns,
    format_lines,
    parse_loads,
)
from eval_gates.speed.rules import SpeedRule
from prepare.errors import StoreError

FAILED = {
    "start_s": [0.0],
    "ttft_s": [None],
    "end_s": [None],
    "input_tokens": [20],
    "output_tokens": [0],
    "error": ["HTTP 500"],
}


def test_a_line_is_read_back_as_it_was() -> None:
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
    good = next(iter(format_lines([load_in_waves(requests=FAILED)])))
    bad = json.loads(good)
    bad["requests"].update(change)
    with pytest.raises(ValueError, match="line 2"):
        parse_loads([good, json.dumps(bad)])


def test_numbers_are_numbers() -> None:
    line = next(iter(format_lines([load_in_waves()])))
    for number in ("NaN", "Infinity", "1e999"):
        with pytest.raises(ValueError, match="line 1"):
            parse_loads([line.replace('"seconds":10.0', f'"seconds":{number}')])


def test_all_loads_of_a_measurement_fit_into_the_evidence() -> None:
    rule = SpeedRule(kind="ratio", alpha=0.05, blocks=40)
    many = rule.max_requests
    load = load_in_waves(
        requests=RequestColumns(
            start_s=[1234.123456789012345] * many,
            ttft_s=[0.123456789012345678] * many,
            end_s=[1234.9123456789012345] * many,
            input_tokens=[1_000] * many,
            output_tokens=[100] * many,
            error=[None] * many,
        )
    )
    letters = len(next(iter(format_lines([load]))))
    assert 0.8 * MAX_CHARACTERS < 2 * 40 * 2 * letters <= MAX_CHARACTERS


def test_how_often_a_block_was_begun_survives_a_kill(tmp_path: Path) -> None:
    """A damaged beginning is no other chance."""
    log = LoadLog(tmp_path)
    begun = log.start(log.open(7), 0)
    log.append(blocks([0.9] * 3))
    assert log.open(7) == begun
    assert (begun.seed, log.start(log.open(7), 0).starts) == (7, 2)
    assert log.loads() == []
    (tmp_path / IN_PROGRESS).write_text('{"seed": ')
    with pytest.raises(StoreError) as caught:
        log.open(7)
    assert caught.value.where == str(tmp_path / IN_PROGRESS)
    (tmp_path / LOADS).write_text("{}\n")
    with pytest.raises(StoreError) as caught:
        log.loads()
    assert caught.value.where == str(tmp_path / LOADS)

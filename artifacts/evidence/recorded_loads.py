"""Checks that a speed gate has all loads that its seed drew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.report import SpeedGateResult, judge_speed
from eval_gates.speed.schedule import Timing, are_whole_blocks, arrival_times, redraw
from pipeline.stages.block import BASELINE
from pipeline.stages.speed import SPEED
from prepare.stage import StageRecord
from recipes.workload import read_pinned


def find_draw_mismatches(role: str, record: StageRecord, loads: Sequence[LoadRun]) -> Iterator[str]:
    """Yield where a stage's loads, in measuring order, differ from its plan.

    ValueError for an invalid rule.
    """
    kept = SPEED.typed(record)
    asked = kept.parameters
    result = kept.result
    rule = asked.rule
    unit = len(asked.rule.sides)
    names = {**({BASELINE: "baseline"} if rule.compares else {}), result.arm: "candidate"}
    units, rest = divmod(len(loads), unit)
    if rest or units != result.units:
        yield f"{role}: its record counts {result.units} {rule.unit}, and there are {units}"
    drawn = list(redraw(result.seed, loads, result.arms, names, result.also))
    measured = [(load.side, load.block, load.order, load.seed) for load in loads]
    if measured != drawn or not are_whole_blocks(loads, unit):
        same = sum(1 for _ in takewhile(lambda n: measured[n] == drawn[n], range(len(drawn))))
        yield f"{role}: number {same // unit} is not what its seed drew: {rule.unit} were changed"
        return
    if not all(_comes_as_asked(load, asked.workload) for load in loads):
        yield f"{role}: its requests came otherwise than its workload says"
    starts = result.starts
    is_over = any(count.is_over for count in starts.values())
    if (units or is_over) and (
        rule.evaluate(loads, starts).state != result.state
        or rule.needs_more(loads, starts)
        or not (is_over or rule.needs_more(loads[:-unit]))
    ):
        yield f"{role}: measuring did not end where its rule ends it"


def _comes_as_asked(load: LoadRun, workload: Mapping[str, Any]) -> bool:
    arrivals = workload["arrivals"]
    if (load.concurrency, load.rate) != (arrivals["concurrency"], arrivals["rate"]):
        return False
    if load.rate is None or load.warmup_s is None or load.measured_s is None:
        return load.rate is None
    timing = Timing(load.warmup_s, load.measured_s)
    is_long = load.warmup_s >= workload["warmup_seconds"] and load.measured_s >= workload["seconds"]
    return is_long and len(load.requests) == len(
        arrival_times(load.seed, load.rate, timing.total_s)
    )


def judge_confirmed(record: StageRecord, loads: list[LoadRun]) -> SpeedGateResult:
    """Judge a tuning's winner against the defaults."""
    told = SPEED.parameters_of(record)
    return judge_speed(
        f"ratio.{told.name}",
        told.rule,
        workload=told.name,
        tier="critical",
        loads=loads,
        traffic=read_pinned(told.workload).load,
        starts=SPEED.result_of(record).starts,
    )

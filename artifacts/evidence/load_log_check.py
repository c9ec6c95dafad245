"""Checks that kept loads are all that a stage measured, by the speed gate's rule.

Digests only show that timings are the recorded ones. These checks find omitted, moved and added
blocks, and a measurement that ended against its rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.randomization import SIDES
from eval_gates.speed.rounds import Timing, arrival_times, next_timing
from eval_gates.speed.server_runs import are_fresh_starts, draw_fresh
from pipeline.core.stage_record import StageRecord
from pipeline.stages.block import BASELINE
from pipeline.stages.speed import SPEED, SpeedParameters


def find_draw_mismatches(role: str, record: StageRecord, loads: Sequence[LoadRun]) -> Iterator[str]:
    """Yield where the loads of a stage `speed` differ from its plan.

    Args:
        role: of the stage.
        record: of the stage.
        loads: in the order of measuring.

    Raises:
        EvidenceError: prepare did not write the record.
        ValueError: its rule is invalid, or the loads are not blocks.
    """
    kept = SPEED.typed(record)
    asked, found = kept.parameters, kept.result
    rule = asked.rule
    schedule = rule.schedule([side for side in SIDES if side in asked.sides])
    names = {BASELINE: "baseline"} if rule.compares else {}
    units, rest = divmod(len(loads), schedule.unit)
    if rest or units != found.units:
        yield f"{role}: its record counts {found.units} {rule.unit}, and there are {units}"
    if asked.is_fresh:
        drawn = list(draw_fresh(found.seed, loads, found.arms, {**names, found.arm: "candidate"}))
        is_whole = are_fresh_starts(loads, schedule.unit)
    else:
        looks = len(schedule.sides) if asked.workload["arrivals"]["concurrency"] else 0
        drawn = list(schedule.drawn(found.seed, loads, looks))
        is_whole = schedule.are_consecutive(loads, found.server_runs)
    measured = [(each.side, each.block, each.order, each.seed) for each in loads]
    if measured != drawn or not is_whole:
        same = sum(1 for _ in takewhile(lambda n: measured[n] == drawn[n], range(len(drawn))))
        number = same // schedule.unit
        yield f"{role}: number {number} is not what its seed drew: {rule.unit} were changed"
        return
    if any(
        not _comes_as_asked(load, asked, loads[: number // schedule.unit * schedule.unit])
        for number, load in enumerate(loads)
    ):
        yield f"{role}: its requests came otherwise than its workload says"
    if units and (
        rule.state(loads) != found.state
        or rule.needs_more(loads)
        or not rule.needs_more(loads[: -schedule.unit])
    ):
        yield f"{role}: measuring did not end where its rule ends it"


def _comes_as_asked(load: LoadRun, asked: SpeedParameters, before: Sequence[LoadRun]) -> bool:
    """Return whether arrivals and counted time follow the workload."""
    arrivals = asked.workload["arrivals"]
    said = (load.concurrency, load.rate) == (arrivals["concurrency"], arrivals["rate"])
    timing = next_timing(asked.workload, before)
    if timing is None:
        return said and load.warmup_s is None
    if asked.is_fresh:  # by the start's short load, which is not kept
        timing = Timing(
            max(load.warmup_s or 0.0, float(asked.workload["warmup_seconds"])),
            max(load.measured_s or 0.0, float(asked.workload["seconds"])),
        )
    if (load.warmup_s, load.measured_s) != (timing.warmup_s, timing.measured_s):
        return False
    rate = arrivals["rate"]
    return said and (
        not rate or len(load.requests) == len(arrival_times(load.seed, rate, timing.total_s))
    )

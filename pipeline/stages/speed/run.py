"""Measures a speed gate, or collects its blocks.

`loads.jsonl` has every load (eval_gates/speed/load_run.py) in order. An interrupted try leaves it
to the next.
"""

from __future__ import annotations

from typing import Any

from eval_gates.speed.load_run import IN_PROGRESS, LOADS, LoadLog
from pipeline.core.digest import digest_bytes
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.block import BASELINE
from pipeline.stages.block.run import collect, digest_of, find_blocks, seed_of
from pipeline.stages.context import StageContext
from pipeline.stages.load_worker import measure_loads
from pipeline.stages.speed import SpeedParameters, SpeedResult, SpeedRuntime

Context = StageContext[SpeedParameters, SpeedRuntime]
RESUMED = (LOADS, IN_PROGRESS)  # blocks of a killed try are not drawn again


def run(context: Context) -> SpeedResult:
    """Measure, or collect blocks."""
    parameters, runtime, rule = context.parameters, context.runtime, context.parameters.rule
    log = LoadLog(context.folder)
    if parameters.is_fresh:
        found = _collect(context, log)
    else:
        begun = log.open(context.input_digests())
        loads = [load for unit in rule.units(log.loads()) for load in unit]
        facts: dict[str, Any] = {}
        if rule.needs_more(loads):
            if begun.starts:
                done = f"{len(loads) // len(rule.sides)} {rule.unit}"
                context.note(f"goes on after {done} that were measured before")
            if runtime.counted is not None:  # before a load is stored
                AttemptLedger(context.store).begin(runtime.counted, parameters.measurement)
            start = {"seed": begun.seed, "server_run": begun.starts}
            begun = log.start(begun, len(loads))
            servers = {
                side: (parameters.sides[side], each) for side, each in runtime.endpoints.items()
            }
            facts = measure_loads(context, servers, start)
        arms = {"arms": rule.sides, "arm": "candidate"}
        found = {**facts, **arms, "seed": begun.seed, "server_runs": begun.starts}
    loads = log.loads()
    return SpeedResult(
        **found,
        units=len(rule.units(loads)),
        state=rule.evaluate(loads).state,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


def _collect(context: Context, log: LoadLog) -> dict[str, Any]:
    runtime, measurement = context.runtime, context.runtime.measurement
    assert measurement is not None
    screens = {
        BASELINE if side == BASELINE else runtime.arm: digest_of(reference, context.store)
        for side, reference in context.spec.inputs.items()
    }
    found = list(find_blocks(measurement, context.store, {}))
    blocks, loads = collect(measurement, runtime.arm, screens, found)
    log.cut(0)
    log.append(loads)
    context.earlier_seconds = sum(block.seconds for block in blocks)
    return {
        "seed": seed_of(measurement),
        "server_runs": sum(block.result.starts for block in blocks),
        "arms": measurement.arms,
        "arm": runtime.arm,
        "prompts_drawn_by": next((block.result.prompts_drawn_by for block in blocks), ""),
    }

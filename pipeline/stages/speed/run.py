"""Measures one speed gate, or collects the blocks that were measured for it.

`loads.jsonl` has every load with the timings of its requests (eval_gates/speed/load_run.py), in the
order of measuring. With servers that stay up, a try that ended early leaves the load log to the
next. With fresh starts, the stages `block` measure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eval_gates.speed.load_log import IN_PROGRESS, LoadLog
from eval_gates.speed.load_run import LOADS
from eval_gates.speed.randomization import SIDES
from pipeline.core.digest import digest_bytes
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.block import BASELINE
from pipeline.stages.block.run import collect, digest_of, find_blocks, seed_of
from pipeline.stages.context import StageContext
from pipeline.stages.load_worker import LoadedServer, measure_loads
from pipeline.stages.speed import SpeedParameters, SpeedResult, SpeedRuntime

Context = StageContext[SpeedParameters, SpeedRuntime]
RESUMED = (LOADS, IN_PROGRESS)  # blocks of a killed try are not drawn again


def run(context: Context) -> SpeedResult:
    """Measure until the gate has its blocks, or collect them.

    Raises:
        ServingError: an endpoint did not answer any request.
        UsageError: the policy allows no further attempt.
        StoreError: an input is not in the store, or a load is damaged.
    """
    if context.parameters.is_fresh:
        return _collect(context)
    parameters, runtime, rule = context.parameters, context.runtime, context.parameters.rule
    schedule = rule.schedule([side for side in SIDES if side in parameters.sides])
    book = LoadLog(context.folder)
    begun, loads = book.open(context.input_digests()), book.loads()
    loads = loads[: len(loads) // schedule.unit * schedule.unit]
    facts: dict[str, Any] = {}
    if rule.needs_more(loads):
        if begun.server_runs:
            done = len(loads) // schedule.unit
            context.note(f"goes on after {done} {rule.unit} that were measured before")
        if runtime.counted is not None:  # before a load is stored
            AttemptLedger(context.store).begin(runtime.counted, parameters.measurement)
        server_run = schedule.next_server_run(begun.seed, begun.server_runs, loads)
        begun = book.start_server_run(begun, len(loads))
        servers = {
            side: LoadedServer(parameters.sides[side], endpoint)
            for side, endpoint in runtime.endpoints.items()
        }
        told = {"name": parameters.name, "rule": rule.model_dump(), "sides": list(schedule.sides)}
        told["server_run"] = asdict(server_run)
        files = (runtime.file, runtime.tokenizer)
        facts = measure_loads(context, parameters.workload, servers, told, *files)
        loads = book.loads()
    return SpeedResult(
        **facts,
        units=len(loads) // schedule.unit,
        state=rule.state(loads),
        seed=begun.seed,
        server_runs=begun.server_runs,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


def _collect(context: Context) -> SpeedResult:
    """Write the loads of this variant and its baseline from the blocks."""
    runtime, measurement = context.runtime, context.runtime.measurement
    assert measurement is not None
    screens = {
        BASELINE if side == BASELINE else runtime.arm: digest_of(reference, context.store)
        for side, reference in context.spec.inputs.items()
    }
    found = list(find_blocks(measurement, context.store, {}))
    blocks, loads = collect(measurement, runtime.arm, screens, found)
    (context.folder / LOADS).unlink(missing_ok=True)
    LoadLog(context.folder).append(loads)
    context.earlier_seconds = sum(block.seconds for block in blocks)
    return SpeedResult(
        units=len(blocks),
        state=measurement.rule.state(loads),
        seed=seed_of(measurement),
        server_runs=sum(block.result.starts for block in blocks),
        arms=measurement.arms,
        arm=runtime.arm,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
        prompts_drawn_by=next((block.result.prompts_drawn_by for block in blocks), ""),
    )

"""Measures a speed gate, or collects its blocks.

`loads.jsonl` has every load (eval_gates/speed/load_run.py) in order. An interrupted try leaves it
to the next.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from eval_gates.speed.load_run import IN_PROGRESS, LOADS, LoadLog
from eval_gates.speed.rules import StartCount
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.block import (
    BASELINE,
    BlockParameters,
    LoadParameters,
    LoadRuntime,
    collect,
    digest_of,
    find_blocks,
    measure_loads,
    seed_of,
)
from pipeline.stages.context import StageContext
from pipeline.stages.starts import StartLedger
from prepare.digest import digest_bytes
from prepare.record import Record
from prepare.stage import Stage, StageSpec
from prepare.store import Store

# Prefix of these stages' roles, before the gate's name.
ROLE = "speed."


class SpeedParameters(LoadParameters):
    """The sides to measure, and the stopping rule."""

    sides: dict[str, ServedModel] = Field(description="candidate, and baseline where it compares")

    @property
    def is_fresh(self) -> bool:
        """Whether each load has a new server start, measured by `block`."""
        return self.rule.starts == "fresh"


class SpeedRuntime(LoadRuntime):
    """The sides' endpoints, and the workload's files."""

    endpoints: dict[str, ServerRuntime] = Field({}, description="by side")
    measurement: BlockParameters | None = Field(None, description="of fresh starts: its blocks")
    arm: str = Field("", description="the candidate's name in them")
    first_file: str | None = Field(None, description="of the blocks' first workload, if it has one")


class SpeedResult(Record):
    """A measurement's summary; `loads.jsonl` has all loads."""

    units: int = Field(description="blocks")
    state: str
    seed: int = Field(description="that traffic was drawn with")
    server_runs: int = Field(
        description="of the servers, that were begun; of one that ended too soon what was whole "
        "is kept. With fresh starts, number of blocks that were begun",
    )
    arms: list[str] = Field(description="among which the order is drawn")
    arm: str = Field(description="the candidate's name among them")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")
    also: str = Field("", description="its workload, if it shares another gate's server starts")
    deviation: float | None = Field(
        None, description="standard deviation of ln(ratio), or ln(limit / time), over quiet blocks"
    )
    starts: dict[str, StartCount] = Field(
        {}, description="of our servers by side, over all commands; two failed ones end the gate"
    )


SPEED = Stage("speed", 11, SpeedParameters, SpeedRuntime, SpeedResult)


Context = StageContext[SpeedParameters, SpeedRuntime]
RESUMED = (LOADS, IN_PROGRESS)  # blocks of a killed try are not drawn again


def run(context: Context) -> SpeedResult:
    """Measure, or collect blocks."""
    parameters = context.parameters
    runtime = context.runtime
    rule = context.parameters.rule
    log = LoadLog(context.folder)
    starts = count_starts(context.spec, context.store)
    if parameters.is_fresh:
        found = _collect(context, log)
    else:
        begun = log.open(context.input_digests())
        loads = [load for unit in rule.units(log.loads()) for load in unit]
        facts: dict[str, Any] = {}
        if rule.needs_more(loads, starts):
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
            facts = measure_loads(context, servers, start, parameters, runtime.file)
        arms = {"arms": rule.sides, "arm": "candidate"}
        found = {**facts, **arms, "seed": begun.seed, "server_runs": begun.starts}
    loads = log.loads()
    return SpeedResult(
        **found,
        units=len(rule.units(loads)),
        state=rule.evaluate(loads, starts).state,
        deviation=rule.deviation(loads),
        starts=starts,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


def measurement_of(spec: StageSpec) -> str:
    """Return the identity of a gate's measurement, which its servers' starts are recorded by."""
    measurement = SPEED.runtime_of(spec).measurement
    return measurement.identity if measurement is not None else spec.key


def count_starts(spec: StageSpec, store: Store) -> dict[str, StartCount]:
    """Count the starts of a gate's servers by side; {} for endpoints.

    A gate that is measured again counts the starts of its last measurement alone.
    """
    parameters = SPEED.parameters_of(spec)
    own = measurement_of(spec) if parameters.measurement > 1 else ""
    return {
        side: StartLedger(store, spec.inputs[side].key).count(own)
        for side, served in parameters.sides.items()
        if served.endpoint is None
    }


def _collect(context: Context, log: LoadLog) -> dict[str, Any]:
    runtime = context.runtime
    measurement = context.runtime.measurement
    assert measurement is not None
    sanities = {
        BASELINE if side == BASELINE else runtime.arm: digest_of(reference, context.store)
        for side, reference in context.spec.inputs.items()
    }
    found = list(find_blocks(measurement, context.store, {}))
    blocks, loads = collect(context.parameters, runtime.arm, sanities, found)
    log.cut(0)
    log.append(loads)
    context.earlier_seconds = sum(block.seconds for block in blocks)
    return {
        "seed": seed_of(measurement),
        "server_runs": sum(block.result.starts for block in blocks),
        "arms": measurement.arms,
        "arm": runtime.arm,
        "also": context.parameters.name if context.parameters.name != measurement.name else "",
        "prompts_drawn_by": next((block.result.prompts_drawn_by for block in blocks), ""),
    }

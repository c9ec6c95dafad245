"""Collects a speed gate's loads from its blocks.

`loads.jsonl` has every load (eval_gates/speed/load_run.py) in order.
"""

from __future__ import annotations

from pydantic import Field

from eval_gates.speed.load_run import LOADS, LoadLog
from eval_gates.speed.rules import StartCount
from pipeline.serving.served_model import ServedModel
from pipeline.stages.block import (
    BASELINE,
    BlockParameters,
    LoadParameters,
    LoadRuntime,
    collect,
    digest_of,
    find_blocks,
    seed_of,
)
from pipeline.stages.context import StageContext
from pipeline.stages.starts import StartLedger
from prepare.digest import digest_bytes
from prepare.record import Record
from prepare.stage import Stage, StageSpec
from prepare.store import Store


class SpeedParameters(LoadParameters):
    """The sides to measure, and the stopping rule."""

    sides: dict[str, ServedModel] = Field(description="candidate, and baseline where it compares")


class SpeedRuntime(LoadRuntime):
    """The measurement whose blocks are collected, and the workload's files."""

    measurement: BlockParameters
    arm: str = Field(description="the candidate's name in the blocks")
    first_file: str | None = Field(None, description="of the blocks' first workload, if it has one")


class SpeedResult(Record):
    """A measurement's summary; `loads.jsonl` has all loads."""

    units: int = Field(description="blocks")
    state: str
    seed: int = Field(description="that traffic was drawn with")
    arms: list[str] = Field(description="among which the order is drawn")
    arm: str = Field(description="the candidate's name among them")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")
    also: str = Field("", description="its workload, if it shares another gate's server starts")
    deviation: float | None = Field(
        None, description="standard deviation of ln(ratio), or ln(limit / time), over quiet blocks"
    )
    starts: dict[str, StartCount] = Field(
        {}, description="of servers by side, over all commands; two failed ones end the gate"
    )


SPEED = Stage("speed", 14, SpeedParameters, SpeedRuntime, SpeedResult)


def run(context: StageContext[SpeedParameters, SpeedRuntime]) -> SpeedResult:
    """Collect the gate's loads."""
    parameters = context.parameters
    measurement = context.runtime.measurement
    arm = context.runtime.arm
    rule = parameters.rule
    sanities = {
        BASELINE if side == "baseline" else arm: digest_of(reference, context.store)
        for side, reference in context.spec.inputs.items()
    }
    every = list(find_blocks(measurement, context.store, {}))
    blocks, loads = collect(parameters, arm, sanities, every)
    log = LoadLog(context.folder)
    log.cut(0)
    log.append(loads)
    context.earlier_seconds = sum(block.seconds for block in blocks)
    starts = count_starts(context.spec, context.store)
    return SpeedResult(
        units=len(blocks),
        state=rule.evaluate(loads, starts).state,
        seed=seed_of(measurement),
        arms=sorted(measurement.arms),
        arm=arm,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
        prompts_drawn_by=next((block.result.prompts_drawn_by for block in blocks), ""),
        also=parameters.name if parameters.name != measurement.name else "",
        deviation=rule.deviation(loads),
        starts=starts,
    )


def measurement_of(spec: StageSpec) -> str:
    """Return the identity of a gate's measurement, which its servers' starts are recorded by."""
    return SPEED.runtime_of(spec).measurement.identity


def count_starts(spec: StageSpec, store: Store) -> dict[str, StartCount]:
    """Count the starts of a gate's servers by side, or the commands that used its endpoints.

    A gate that is measured again counts the starts of its last measurement alone.
    """
    parameters = SPEED.parameters_of(spec)
    own = measurement_of(spec) if parameters.measurement_number > 1 else ""
    return {side: StartLedger(store, spec.inputs[side].key).count(own) for side in parameters.sides}

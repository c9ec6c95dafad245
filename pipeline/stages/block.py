"""Measures one block: one arm's server after another, under the same prompts.

A killed block is drawn again. An arm whose server does not start, or ends under load, is missing in
the block; `starts.py` counts this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from eval_gates.speed.load_run import IN_PROGRESS, LOADS, LoadLog, LoadRun, read_loads
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import draw_block, load_seed
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.attempts import AttemptLedger, Counted, Trial
from pipeline.stages.context import StageContext
from prepare.digest import digest_bytes, digest_json
from prepare.errors import PrepareError, ServingError, StoreError, raise_as
from prepare.process_environment import NetworkAccess
from prepare.record import Record
from prepare.stage import Stage, StageReference, StageSpec, WorkerRuntime
from prepare.store import Store
from recipes.engines import find_engine
from recipes.traffic_file import prompts_of

BASELINE = "baseline"


class SideLostError(ServingError):
    """A side's server answered no request of a load."""

    side = ""
    """Its name; '' if it is unknown."""


class LoadParameters(Record):
    """What a gate's loads depend on, besides the models."""

    name: str = Field(description="of the workload")
    workload: dict[str, Any] = Field(description="with a digest in place of its file")
    rule: SpeedRule = Field(description="that decides")
    environment: str = Field("", description="identity of the load generator's")
    machine: str = Field("", description="speeds of two machines are not compared")
    other_weights: list[str] = Field(
        [], fail_fast=True, description="of weights that were there: measured again"
    )
    measurement: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        return f"{self.rule.kind} {self.name}"


class LoadRuntime(WorkerRuntime):
    """The workload's files."""

    tokenizer: str = Field("", description="folder")
    gate: str = Field("", description="the gate: `ratio.chat`, `slo.0`")
    file: str | None = Field(None, description="of a workload that has one")
    counted: Counted | None = Field(None, description="None of a race, which decides nothing")


class BlockParameters(LoadParameters):
    """The measurement, and a block's number."""

    baseline: ServedModel
    trial: Trial = Field(description="the variants that are judged together")
    also: list[LoadParameters] = Field(
        [], fail_fast=True, description="further loads of the same starts"
    )
    number: int = Field(0, ge=0, description="of the block")

    @property
    def arms(self) -> list[str]:
        """All arms that a block can have."""
        return [*([BASELINE] if self.rule.compares else []), *sorted(self.trial.variants)]

    @property
    def identity(self) -> str:
        """Digest of the measurement, the same for all its blocks."""
        return digest_json(self.model_copy(update={"number": 0}).model_dump(mode="json"))


class BlockArm(Record):
    """An arm that takes part in a block."""

    served: ServedModel
    sanity: StageReference = Field(description="the stage of its first answer")


class BlockRuntime(LoadRuntime):
    """The arms, and the workload's files."""

    arms: dict[str, BlockArm] = Field({}, description="by name")
    also: dict[str, str | None] = Field(
        {}, description="further loads that a gate needs, with their files, by workload"
    )


class BlockResult(Record):
    """A block's summary; `loads.jsonl` has the loads in order."""

    arms: dict[str, str] = Field(
        description="by arm that was measured, in that order, the digest of its sanity stage"
    )
    workloads: list[str] = Field([], description="of each arm's loads, in order")
    failed: list[str] = Field([], description="arms whose server did not start, or ended")
    seed: int = Field(description="that traffic and order of the measurement are drawn with")
    starts: int = Field(description="how often the block was begun; only the last is kept")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")


BLOCK = Stage("block", 6, BlockParameters, BlockRuntime, BlockResult)


RESUMED = (IN_PROGRESS,)  # how often the block was begun
Context = StageContext[BlockParameters, BlockRuntime]


def run(context: Context) -> BlockResult:
    """Measure the block."""
    parameters = context.parameters
    runtime = context.runtime
    assert context.servers is not None
    assert runtime.arms.keys() <= set(parameters.arms)
    log = LoadLog(context.folder)
    begun = log.start(log.open({}, seed_of(parameters)), 0)
    before = begun.starts - 1
    order, traffic = draw_block(begun.seed, parameters.number, before, parameters.arms)
    if runtime.counted is not None:
        AttemptLedger(context.store).begin(runtime.counted, parameters.measurement)
    loads: list[tuple[LoadParameters, str | None, str]] = [(parameters, runtime.file, "")]
    for load in parameters.also:
        if load.name in runtime.also:
            loads.append((load, runtime.also[load.name], load.name))
    measured: dict[str, str] = {}
    facts: dict[str, Any] = {}
    failed = []
    for arm in order:
        if arm not in runtime.arms:
            continue
        side = BASELINE if arm == BASELINE else "candidate"
        start = {
            **{"side": side, "block": parameters.number, "server_run": before},
            "order": len(measured),
        }
        context.advance(f"speed {parameters.name}, block {parameters.number}", len(measured), None)
        try:
            with context.servers.up(arm) as endpoint:
                server = (runtime.arms[arm].served, ServerRuntime.model_validate(endpoint))
                for load, file, also in loads:
                    drawn = {**start, "seed": load_seed(traffic, also)}
                    facts = measure_loads(context, {side: server}, drawn, load, file)
        except PrepareError as error:
            context.servers.leave(arm, error)
            failed.append(arm)
            log.cut(len(measured) * len(loads))
            continue
        measured[arm] = digest_of(runtime.arms[arm].sanity, context.store)
    return BlockResult(
        **facts,
        arms=measured,
        workloads=[load.name for load, _, _ in loads],
        failed=failed,
        seed=begun.seed,
        starts=begun.starts,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


def seed_of(parameters: BlockParameters) -> int:
    """Return a measurement's seed, which follows from what is measured."""
    return int(parameters.identity[:12], 16)


def digest_of(sanity: StageReference, store: Store) -> str:
    """Return the digest of an arm's model and first answers."""
    return digest_json([sanity.key, store.get(sanity).result])


@dataclass(frozen=True)
class Block:
    """A finished block."""

    number: int
    result: BlockResult
    loads: Sequence[LoadRun]
    seconds: float


def find_blocks(
    measurement: BlockParameters, store: Store, known: dict[str, Block]
) -> Iterator[Block]:
    """Yield a measurement's finished blocks by number.

    `known` has blocks by key, and gets the new ones. StoreError: loads are damaged.
    """
    number = missed = 0
    while missed <= measurement.rule.blocks:
        spec = block_spec(measurement, number, BlockRuntime(), store.root)
        if spec.key not in known and (record := store.find(spec.stage, spec.key)) is not None:
            file = store.stage_folder(spec.stage, spec.key) / LOADS
            hint = "delete the block's folder to measure it again"
            kinds = (OSError, ValueError)
            with raise_as(StoreError, "loads cannot be read", file, hint, errors=kinds):
                loads = read_loads(file)
            known[spec.key] = Block(number, BLOCK.result_of(record), loads, record.seconds)
        if spec.key in known:
            missed = 0
            yield known[spec.key]
        else:
            missed += 1
        number += 1


def block_spec(
    measurement: BlockParameters, number: int, runtime: BlockRuntime, store: Path
) -> StageSpec:
    """Return the stage of a block."""
    parameters = measurement.model_copy(update={"number": number})
    return BLOCK.spec("speed", parameters, {}, runtime, store)


def collect(
    gate: LoadParameters, variant: str, sanities: Mapping[str, str], blocks: Sequence[Block]
) -> tuple[list[Block], list[LoadRun]]:
    """Return the blocks that a gate needs, and both sides' loads.

    Loads whose arm has another digest than in `sanities` do not count.
    """
    rule = gate.rule
    arms = [variant, *([BASELINE] if rule.compares else [])]
    taken = []
    loads = list[LoadRun]()
    for block in blocks:
        if not rule.needs_more(loads):
            break
        if any(block.result.arms.get(arm) != sanities[arm] for arm in arms):
            continue
        workloads = block.result.workloads
        if gate.name not in workloads:
            continue
        every = block.loads[workloads.index(gate.name) :: len(workloads)]
        own = [load for arm, load in zip(block.result.arms, every, strict=True) if arm in arms]
        loads += [load.model_copy(update={"order": place}) for place, load in enumerate(own)]
        taken.append(block)
    return taken, loads


# One of vLLM's data sets draws prompts with Python's hash of a text, which otherwise differs in
# each process.
LOAD_VARIABLES = {"PYTHONHASHSEED": "0"}
PROMPTS = "prompts.jsonl"


def measure_loads(
    context: StageContext[Any, Any],
    servers: Mapping[str, tuple[ServedModel, ServerRuntime]],
    start: Mapping[str, Any],
    load: LoadParameters,
    file: str | None,
) -> dict[str, Any]:
    """Have the worker measure on running servers; return its facts.

    `start` is described in eval_gates/speed/speed_worker.py.
    """
    runtime = context.runtime
    is_ours = all(endpoint.socket is not None for _, endpoint in servers.values())
    with _prompts_in_place(context.folder / PROMPTS, load.workload, file) as workload:
        spec = {
            "name": load.name,
            "workload": workload,
            "rule": load.rule.model_dump(),
            "start": dict(start),
            "endpoints": {
                side: {
                    **endpoint.model_dump(include={"url", "model", "socket"}),
                    # The engine of a user's endpoint is unknown; most are vLLM's.
                    "counters": dict(find_engine(served.serving.engine).counters),
                }
                for side, (served, endpoint) in servers.items()
            },
            "tokenizer": runtime.tokenizer,
            "trust_remote_code": any(served.trust_remote_code for served, _ in servers.values()),
            "on_gpus": is_ours
            and all(served.hardware.accelerator == "cuda" for served, _ in servers.values()),
        }
        try:
            return context.run_worker(
                "eval_gates.speed.speed_worker",
                spec,
                environment=LOAD_VARIABLES,
                needs=[] if is_ours else [NetworkAccess.ENDPOINT],
            )
        except ServingError as error:
            named = [server for side, (_, server) in servers.items() if side == error.where]
            logs = {each.server_log for each in named or [each for _, each in servers.values()]}
            lost = SideLostError(
                error.message,
                where=", ".join(sorted(logs)),
                hint="read the server's log; running the same command again goes on from here",
            )
            lost.side = error.where if named else ""
            raise lost from error


@contextmanager
def _prompts_in_place(
    copy: Path, workload: Mapping[str, Any], file: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the workload for the load generator; its file exists only meanwhile.

    Users' prompts are not evidence.
    """
    if workload["kind"] != "requests":
        yield dict(workload)
        return
    try:
        with copy.open("w") as lines:
            for prompt in prompts_of(Path(file or "")):
                lines.write(json.dumps({"prompt": prompt}) + "\n")
        yield {**workload, "file": str(copy)}
    finally:
        copy.unlink(missing_ok=True)

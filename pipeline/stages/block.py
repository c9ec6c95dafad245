"""Measures one block: a load of each arm, in drawn order, under the same prompts.

With fresh starts one arm's server is up after another, else all are up. A killed block is drawn
again. An arm whose server does not start, or ends under load, is missing in the block; `starts.py`
counts this. Running endpoints are measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from eval_gates.speed.load_run import IN_PROGRESS, LOADS, LoadLog, LoadRun, read_loads
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import draw_block, load_seed
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.attempts import AttemptLedger, Counted
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


class ArmLostError(ServingError):
    """An arm's server does not start, has ended, or answered no request of a load."""

    arm = ""
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
    measurement_number: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        return f"{self.rule.kind} {self.name}"


class LoadRuntime(WorkerRuntime):
    """The workload's files."""

    tokenizer: str = Field("", description="folder")
    gate: str = Field("", description="the gate: `ratio.chat`, `slo.0`")
    file: str | None = Field(None, description="of a workload that has one")
    counted: Counted | None = Field(None, description="None if it decides nothing")


class BlockParameters(LoadParameters):
    """The measurement, and a block's number."""

    arms: dict[str, str] = Field(
        description="that are measured together: by name, the key of the sanity stage"
    )
    also: list[LoadParameters] = Field(
        [], fail_fast=True, description="further loads of the same starts"
    )
    number: int = Field(0, ge=0, description="of the block")

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


BLOCK = Stage("block", 8, BlockParameters, BlockRuntime, BlockResult)


RESUMED = (IN_PROGRESS,)  # how often the block was begun
Context = StageContext[BlockParameters, BlockRuntime]


def run(context: Context) -> BlockResult:
    """Measure the block."""
    parameters = context.parameters
    runtime = context.runtime
    assert runtime.arms.keys() <= parameters.arms.keys()
    log = LoadLog(context.folder)
    begun = log.start(log.open(seed_of(parameters)), 0)
    order, traffic = draw_block(begun.seed, parameters.number, begun.starts - 1, parameters.arms)
    if runtime.counted is not None:
        AttemptLedger(context.store).begin(runtime.counted, parameters.measurement_number)
    measuring = MeasuredBlock(context, begun.starts - 1, traffic)
    waiting = [arm for arm in order if arm in runtime.arms]
    stay = parameters.rule.starts == "once"
    while waiting:
        group = waiting if stay else waiting[:1]
        lost = measuring.measure(group, stay=stay)
        waiting = [arm for arm in waiting if arm not in (*measuring.measured, lost)]
    return BlockResult(
        **measuring.facts,
        arms={
            arm: digest_of(runtime.arms[arm].sanity, context.store) for arm in measuring.measured
        },
        workloads=[load.name for load, _, _ in measuring.loads],
        failed=measuring.failed,
        seed=begun.seed,
        starts=begun.starts,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


class MeasuredBlock:
    """A block in progress: arms with complete loads, in that order, and arms that were lost.

    `before` counts the block's earlier beginnings. `traffic` is the seed of its loads.
    """

    def __init__(self, context: Context, before: int, traffic: int) -> None:
        self.measured: list[str] = []
        self.failed: list[str] = []
        self.facts: dict[str, Any] = {}
        self._context = context
        self._before = before
        parameters = context.parameters
        runtime = context.runtime
        self.loads: list[tuple[LoadParameters, str | None, int]] = [
            (parameters, runtime.file, load_seed(traffic, ""))
        ]
        for load in parameters.also:
            if load.name in runtime.also:
                seed = load_seed(traffic, load.name)
                self.loads.append((load, runtime.also[load.name], seed))

    def measure(self, group: Sequence[str], *, stay: bool) -> str:
        """Measure these arms; return one that was lost, or ''."""
        context = self._context
        name = context.parameters.name
        number = context.parameters.number
        context.advance(f"speed {name}, block {number}", len(self.measured), None)
        servers = context.servers
        assert servers is not None
        if all(context.runtime.arms[arm].served.endpoint is None for arm in group):
            context.warm_worker(LOAD_WORKER, LOAD_VARIABLES)  # while servers start
        try:
            with servers.up(group, stay=stay) as endpoints:
                served = {
                    arm: (context.runtime.arms[arm].served, ServerRuntime.model_validate(facts))
                    for arm, facts in endpoints.items()
                }
                self.facts = measure_loads(context, served, self._drawn(group), self.loads)
        except PrepareError as error:
            lost = error.arm if isinstance(error, ArmLostError) else ""
            if not lost and len(group) > 1:
                raise
            lost = lost or group[0]
            servers.leave(lost, error)
            self.failed.append(lost)
            self._keep_complete(group, lost)
            return lost
        self.measured += group
        return ""

    def _drawn(self, group: Sequence[str]) -> list[dict[str, Any]]:
        """Return place and side of each arm's loads."""
        parameters = self._context.parameters
        return [
            {
                "arm": arm,
                "side": BASELINE if arm == BASELINE and parameters.rule.compares else "candidate",
                "block": parameters.number,
                "server_run": self._before,
                "order": place,
            }
            for place, arm in enumerate(group, start=len(self.measured))
        ]

    def _keep_complete(self, group: Sequence[str], lost: str) -> None:
        """Drop the loads of the lost arm, and of one that was not measured completely."""
        log = LoadLog(self._context.folder)
        loads = log.loads()
        size = len(self.loads)
        complete = [*self.measured, *group][: len(loads) // size]
        kept = [
            load
            for place, arm in enumerate(complete)
            if arm != lost
            for load in loads[place * size : (place + 1) * size]
        ]
        log.cut(0)
        log.append(kept)
        self.measured = [arm for arm in complete if arm != lost]


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
LOAD_WORKER = "eval_gates.speed.speed_worker"


def measure_loads(
    context: Context,
    servers: Mapping[str, tuple[ServedModel, ServerRuntime]],
    drawn: Sequence[Mapping[str, Any]],
    loads: Sequence[tuple[LoadParameters, str | None, int]],
) -> dict[str, Any]:
    """Have the worker measure running servers; return its facts.

    `drawn` has the arms in order, as eval_gates/speed/speed_worker.py describes. `loads` are each
    arm's, with the workload's file and the seed.
    """
    is_ours = all(endpoint.socket is not None for _, endpoint in servers.values())
    with ExitStack() as held:
        spec = {
            "arms": [dict(arm) for arm in drawn],
            "loads": [
                {
                    "name": load.name,
                    "workload": held.enter_context(
                        _prompts_in_place(context.folder / f"{number}.{PROMPTS}", load, file)
                    ),
                    "rule": load.rule.model_dump(),
                    "seed": seed,
                }
                for number, (load, file, seed) in enumerate(loads)
            ],
            "endpoints": {
                arm: {
                    **endpoint.model_dump(include={"url", "model", "socket"}),
                    # The engine of a user's endpoint is unknown; most are vLLM's.
                    "counters": dict(find_engine(served.serving.engine).counters),
                }
                for arm, (served, endpoint) in servers.items()
            },
            "tokenizer": context.runtime.tokenizer,
            "trust_remote_code": any(served.trust_remote_code for served, _ in servers.values()),
            "on_gpus": is_ours
            and all(served.hardware.accelerator == "cuda" for served, _ in servers.values()),
        }
        try:
            return context.run_worker(
                LOAD_WORKER,
                spec,
                environment=LOAD_VARIABLES,
                needs=[] if is_ours else [NetworkAccess.ENDPOINT],
                stays=True,
            )
        except ServingError as error:
            named = [server for arm, (_, server) in servers.items() if arm == error.where]
            logs = {
                endpoint_facts.server_log
                for endpoint_facts in named
                or [endpoint_facts for _, endpoint_facts in servers.values()]
            }
            lost = ArmLostError(
                error.message,
                where=", ".join(sorted(logs)),
                hint="read the server's log; running the same command again goes on from here",
            )
            lost.arm = error.where if named else ""
            raise lost from error


@contextmanager
def _prompts_in_place(
    copy: Path, load: LoadParameters, file: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the workload for the load generator; its file exists only meanwhile.

    Users' prompts are not evidence.
    """
    if load.workload["kind"] != "requests":
        yield dict(load.workload)
        return
    try:
        with copy.open("w") as lines:
            for prompt in prompts_of(Path(file or "")):
                lines.write(json.dumps({"prompt": prompt}) + "\n")
        yield {**load.workload, "file": str(copy)}
    finally:
        copy.unlink(missing_ok=True)

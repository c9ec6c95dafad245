"""Measures one speed gate: blocks of both sides, or loads of the candidate.

`loads.jsonl` has every load with the timings of its requests (eval_gates/speed/load_run.py), in the
order of measuring. A try that ended early leaves the load log to the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eval_gates.speed.gate_rule import ClaimRule
from eval_gates.speed.load_log import IN_PROGRESS, LoadLog, MeasurementInProgress
from eval_gates.speed.load_run import LOADS, LoadRun
from eval_gates.speed.randomization import SIDES
from eval_gates.speed.screening import ScreeningRule
from eval_gates.speed.server_runs import ServerRun, ServerRunSchedule
from pipeline.core.digest import digest_bytes, digest_json
from pipeline.core.errors import ServingError
from pipeline.core.private_files import private_umask
from pipeline.core.process_environment import NetworkAccess
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate.run import record_of
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedResult, SpeedRuntime
from recipes.engines import find_engine
from recipes.traffic_file import prompts_of

# One of vLLM's data sets draws prompts with Python's hash of a text, which is another one in each
# process unless this is set.
VARIABLES = {"PYTHONHASHSEED": "0"}
Context = StageContext[SpeedParameters, SpeedRuntime]
PROMPTS = "prompts.jsonl"
RESUMED = (LOADS, IN_PROGRESS)  # blocks of a killed try are not drawn again


@dataclass(frozen=True)
class MeasurementProgress:
    """Progress of a measurement, and its next step."""

    book: LoadLog
    begun: MeasurementInProgress
    rule: ClaimRule | ScreeningRule
    server_runs: ServerRunSchedule
    loads: Sequence[LoadRun]
    """Without those of what was half measured."""

    def next_server_run(self) -> ServerRun | None:
        """Return the next server start to measure; None if the measurement is over."""
        is_between = len(self.loads) % self.server_runs.unit == 0
        if is_between and not self.rule.needs_more(self.loads):
            return None
        return self.server_runs.next_server_run(self.begun.seed, self.begun.server_runs, self.loads)

    def next_sides(self) -> tuple[str, ...]:
        """Return the sides whose servers must run for it.

        With fresh starts it is one.
        """
        server_run = self.next_server_run()
        return server_run.sides if server_run is not None else ()


def course_of(spec: StageSpec, store: Store, folder: Path | None = None) -> MeasurementProgress:
    """Return the measurement's progress.

    Args:
        folder: of the try that measures; None for a reader.

    Raises:
        StoreError: an input is not in the store, or a load is damaged.
    """
    parameters = SPEED.parameters_of(spec)
    folder = folder or store.unfinished_folder(spec.stage, spec.key)
    rests_on = {role: digest_json(record_of(spec, store, role).result) for role in spec.inputs}
    with store.explain_errors(), private_umask(store.root):
        folder.mkdir(parents=True, exist_ok=True)
        book = LoadLog(folder)
        begun = book.open(rests_on)
    rule = parameters.rule
    schedule = rule.schedule([side for side in SIDES if side in parameters.sides])
    loads = book.loads()
    return MeasurementProgress(
        book, begun, rule, schedule, loads[: len(loads) // schedule.whole * schedule.whole]
    )


def run(context: Context) -> SpeedResult | None:
    """Measure until the gate has its blocks; None: another server is needed.

    Raises:
        ServingError: an endpoint did not answer any request.
        UsageError: the policy allows no further attempt.
    """
    course = course_of(context.spec, context.store, context.folder)
    facts: dict[str, Any] = {}
    if (server_run := course.next_server_run()) is not None:
        if course.begun.server_runs and not course.server_runs.is_fresh:
            done = len(course.loads) // course.server_runs.unit
            context.note(f"goes on after {done} {course.rule.unit} that were measured before")
        count_loads(context)
        course.book.start_server_run(course.begun, len(course.loads))
        facts = measure(context, course, server_run)
        course = course_of(context.spec, context.store, context.folder)
        if course.next_server_run() is not None:
            return None
    return SpeedResult(
        **facts,
        units=len(course.loads) // course.server_runs.unit,
        state=course.rule.state(course.loads),
        seed=course.begun.seed,
        server_runs=course.begun.server_runs,
        loads_digest=digest_bytes((context.folder / LOADS).read_bytes()),
    )


def count_loads(context: Context) -> None:
    """Record the attempt, before a load is stored."""
    if (counted := context.runtime.counted) is not None:
        AttemptLedger(context.store).begin(counted, context.parameters.measurement)


def measure(context: Context, course: MeasurementProgress, server_run: ServerRun) -> dict[str, Any]:
    """Have the worker measure on the running servers; return its facts."""
    endpoints = context.runtime.endpoints
    is_ours = all(each.socket is not None for each in endpoints.values())
    with PromptFile(context) as workload:
        try:
            return context.run_worker(
                "pipeline.workers.speed",
                worker_spec(context, workload, course, server_run),
                environment=VARIABLES,
                needs=[] if is_ours else [NetworkAccess.ENDPOINT],
            )
        except ServingError as error:
            logs = ", ".join(sorted({each.server_log for each in endpoints.values()}))
            raise ServingError(
                error.message,
                where=logs,
                hint="read the server's log; running the same command again goes on from here",
            ) from error


class PromptFile:
    """The workload in the load generator's form; a file of prompts exists only meanwhile.

    Users' prompts are not evidence: each load's digest identifies them.
    """

    def __init__(self, context: Context) -> None:
        self._file = context.runtime.file or ""
        self._workload = context.parameters.workload
        self._copy = context.folder / PROMPTS

    def __enter__(self) -> dict[str, Any]:
        if self._workload["kind"] == "requests":
            with self._copy.open("w") as lines:
                for prompt in prompts_of(Path(self._file)):
                    lines.write(json.dumps({"prompt": prompt}) + "\n")
            return {**self._workload, "file": str(self._copy)}
        return self._workload

    def __exit__(self, *_: object) -> None:
        self._copy.unlink(missing_ok=True)


def worker_spec(
    context: Context, workload: dict[str, Any], course: MeasurementProgress, server_run: ServerRun
) -> dict[str, Any]:
    """Return the worker's input."""
    parameters, runtime = context.parameters, context.runtime
    engines = {side: find_engine(each.serving.engine) for side, each in parameters.sides.items()}
    return {
        "name": parameters.name,
        "workload": workload,
        "rule": course.rule.model_dump(),
        "sides": list(course.server_runs.sides),
        "server_run": asdict(server_run),
        "endpoints": {
            side: {
                "url": each.url,
                "model": each.model,
                "socket": each.socket,
                # The engine of a user's endpoint is unknown; most are vLLM's.
                "counters": dict(engines[side].counters),
            }
            for side, each in runtime.endpoints.items()
        },
        "tokenizer": runtime.tokenizer,
        "trust_remote_code": any(side.trust_remote_code for side in parameters.sides.values()),
        "on_gpus": all(
            each.socket is not None and parameters.sides[side].hardware.accelerator == "cuda"
            for side, each in runtime.endpoints.items()
        ),
    }

"""Serving one side of a run from one server start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.run_record import StageReport, StageStatus
from eval_gates.ask import TooLongError
from pipeline.environments.definition import Accelerator
from pipeline.plan.plan import Arm
from pipeline.plan.progress import PlanProgress
from pipeline.run.stage_run import StageRunner
from pipeline.serving.argument_check import engine_version
from pipeline.serving.served_model import SERVED_NAME, ExternalModel
from pipeline.serving.server import URL, Server
from pipeline.stages.block import SideLostError
from pipeline.stages.evaluate import EVALUATE, is_answered
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED, count_starts, measurement_of
from pipeline.stages.starts import ServerStart, StartLedger
from prepare.errors import PrepareError, ServingError
from prepare.file_locks import doing
from prepare.gpus import gpu_states, visible_gpus
from prepare.interruption import hold_interruptions, is_interruption
from prepare.lots import NOTHING, Lot, Needs, Node
from prepare.private_files import private_umask
from prepare.stage import StageRecord, StageSpec
from prepare.store import Store
from recipes.engine_arguments import count_gpus
from recipes.engines import find_engine


class BrokenModelError(ServingError):
    """A broken variant, by verdict, or baseline, by error."""


class ServerEndedError(ServingError):
    """A server ended by itself."""

    arm = ""
    """Name of the arm that it served."""


@dataclass
class LocalServers:
    """Model servers on this machine, from the first question until closed.

    The caller has the resources. `caches_of` returns an environment's cache variables.
    """

    stages: StageRunner
    caches_of: Callable[[str], Mapping[str, str]]
    _servers: dict[str, Server] = field(default_factory=dict)
    _facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def open(self, arm: Arm) -> dict[str, Any]:
        """Return facts on the arm's endpoint, opened if necessary."""
        if facts := facts_of(arm.identity.endpoint):
            return facts
        if arm.recipe.name not in self._facts:
            self._facts[arm.recipe.name] = self._start(arm)
        return self._facts[arm.recipe.name]

    def check_alive(self) -> None:
        """Raise ServerEndedError if a server has ended."""
        for name, server in list(self._servers.items()):
            try:
                server.check_alive()
            except ServingError as error:
                self._stop(name)
                ended = ServerEndedError(error.message, where=error.where, hint=error.hint)
                ended.arm = name
                raise ended from error

    def close(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._stop, list(self._servers)))

    def _stop(self, name: str) -> None:
        self._facts.pop(name, None)
        self._servers.pop(name).stop()

    def _start(self, arm: Arm) -> dict[str, Any]:
        engine = arm.identity.serving.engine
        environment = find_engine(engine).environment
        python = self.stages.python_of(environment)
        log = self._make_log(arm.recipe.name)
        server = Server(
            python,
            arm.folder,
            arm.identity.serving,
            log,
            trust_remote_code=arm.identity.trust_remote_code,
            draft=arm.draft,
            caches=self.caches_of(environment),
        )
        # Stored before it starts, so that it is always stopped.
        self._servers[arm.recipe.name] = server
        ready = self._await(server, arm)
        facts = {"ready_seconds": ready, "command": server.command[1:]}
        return {
            "url": URL,
            "socket": str(server.socket),
            "model": SERVED_NAME,
            "server_log": str(log),
            "server": {**facts, **server.facts()},
            "engine_version": engine_version(engine, python),
        }

    def _make_log(self, name: str) -> Path:
        """Return a new log: NAME.log, NAME.2.log and so on.

        Several nodes may serve the baseline.
        """
        folder = self.stages.log.folder
        server_run = 1
        while True:
            log = folder / f"server.{name}{f'.{server_run}' * (server_run > 1)}.log"
            with suppress(FileExistsError), private_umask(folder):
                log.touch(exist_ok=False)
                return log
            server_run += 1

    def _await(self, server: Server, arm: Arm) -> float:
        """Start the server, and record a row for it."""
        progress = self.stages.progress
        started = time.monotonic()
        status: StageStatus = "failed"
        try:
            ready = server.start(arm.ready_timeout_seconds, progress, arm.recipe.name)
            status = "ran"
        except BaseException as error:
            status = "interrupted" if is_interruption(error) else "failed"
            raise
        finally:
            seconds = time.monotonic() - started
            self.stages.log.stage(
                StageReport(
                    name="serve",
                    stage="serve",
                    variant=arm.recipe.name,
                    status=status,
                    seconds=seconds,
                    key=None,
                )
            )
        progress.note(f"{arm.recipe.name}: server ready ({ready:.1f} s)")
        return ready


def facts_of(endpoint: ExternalModel | None) -> dict[str, Any]:
    """Return a stage's facts on an external endpoint; {} if it is ours."""
    if endpoint is None:
        return {}
    return {
        "url": endpoint.url,
        "model": endpoint.model,
        "server_log": f"the log of {endpoint.url}",
        "server": {"url": endpoint.url, "model": endpoint.model, "ready_seconds": 0.0},
    }


@dataclass
class Serving:
    """Runner of stages that a served model answers."""

    state: PlanProgress
    stages: StageRunner
    endpoints: LocalServers
    node: Node
    _up: dict[str, tuple[StartLedger, ServerStart]] = field(default_factory=dict)

    def open(self, arm: Arm, measurement: str = "") -> dict[str, Any]:
        """Return facts on the arm's endpoint; record a start of our server.

        `measurement` is that of a load. ServingError: it does not start.
        """
        name = arm.recipe.name
        # Parts of an ablation have no sanity stage.
        is_ours = arm.is_ours and SANITY.name in arm.stages
        if not is_ours or name in self._up:
            return self.endpoints.open(arm)
        ledger = StartLedger(self.stages.store, arm.stages[SANITY.name].key)
        start = ledger.begin(measurement, self.state.plan.run)
        try:
            facts = self.endpoints.open(arm)
        except ServingError as error:
            gpus = [gpu.uuid for gpu in visible_gpus()] if self._is_on_gpus else []
            is_occupied = any(state.processes for state in gpu_states(gpus))
            ledger.note(start, "disturbed" if is_occupied else "failed", error.message)
            raise
        ready = ledger.note(start, "ready")
        self._up[name] = (ledger, ready)
        return facts

    def close(self) -> None:
        """End all our servers."""
        self._up.clear()
        self.endpoints.close()

    def check_alive(self) -> None:
        """Raise ServerEndedError if a server has ended, which is recorded."""
        try:
            self.endpoints.check_alive()
        except ServerEndedError as error:
            self.note_failure(error.arm, error)
            raise

    def note_failure(self, name: str, error: PrepareError) -> None:
        """Record that an arm's server failed under load."""
        if name in self._up:
            ledger, start = self._up.pop(name)
            ledger.note(start, "failed", error.message)

    @property
    def _is_on_gpus(self) -> bool:
        return self.stages.accelerator is Accelerator.CUDA

    def undone(self, specs: Sequence[StageSpec]) -> list[StageSpec]:
        """Return stages from the first unfinished one on."""
        for place, spec in enumerate(specs):
            if self.stages.reuse(spec) is None:
                return list(specs[place:])
        return []

    def needs(self, variant: Arm, specs: Sequence[StageSpec]) -> Needs:
        """Return what the servers take, at most."""
        undone = self.undone(specs)
        asked = [spec for spec in undone if needs_endpoint(spec, self.stages.store)]
        if not asked or not variant.is_ours:
            return NOTHING
        if self.stages.accelerator is not Accelerator.CUDA:
            return Needs(cores=True)
        sides = [variant.identity.serving]
        baseline = self.state.plan.baseline
        if any(spec.stage == SPEED.name for spec in asked) and baseline.is_ours:
            sides.append(baseline.identity.serving)
        return Needs(gpus=max(count_gpus(side.engine_arguments) for side in sides))

    def hold(self, variant: Arm, specs: Sequence[StageSpec]) -> None:
        """Wait for the resources and run the variant's unfinished stages.

        BrokenModelError: the model is broken. PrepareError: a server or stage failed.
        """
        self.check_sane(variant)
        with ExitStack() as held:
            held.enter_context(doing(f"serves {variant.recipe.name}"))
            needs = self.needs(variant, specs)
            lot = held.enter_context(self.node.take(needs, self.tell_of_waiting))
            assert lot is not None
            self.run(variant, specs, lot)
        self.check_sane(variant)

    def check_sane(self, variant: Arm) -> None:
        """Raise BrokenModelError for a model found broken."""
        if why := self.state.fault(variant):
            raise BrokenModelError(why)

    def run(self, variant: Arm, specs: Sequence[StageSpec], lot: Lot) -> None:
        """Run the stages on the lot, with servers while needed.

        It ends early if the model is broken.
        """
        try:
            for spec in self.undone(specs):
                if spec.stage == SPEED.name and self.state.has_failed(variant):
                    continue
                self._run(variant, spec, lot)
                if spec.stage == SANITY.name and self.state.fault(variant):
                    return
        finally:
            # The user may interrupt several times, and the servers must end before us.
            with hold_interruptions():
                self.close()

    def _run(self, variant: Arm, spec: StageSpec, lot: Lot) -> StageRecord:
        if not needs_endpoint(spec, self.stages.store):
            return self.stages.run(spec)
        try:
            with ExitStack() as held:
                if spec.stage == SPEED.name and self.is_alone and variant.is_ours:
                    held.enter_context(lot.quiet(self.tell_of_waiting))
                record = self.stages.run(spec, lambda: self._open(variant, spec))
        except TooLongError as error:
            if not variant.is_ours or EVALUATE.runtime_of(spec).halved:
                raise
            self.stages.progress.note(f"{error.message}; once more, with half the tokens")
            self.close()
            halved = {**spec.runtime, "halved": True}
            return self._run(variant, spec.model_copy(update={"runtime": halved}), lot)
        except PrepareError as error:
            return self._end_after(error, variant, spec)
        self.check_alive()  # else something else may have answered
        return record

    def _end_after(self, error: PrepareError, variant: Arm, spec: StageSpec) -> StageRecord:
        """Raise the error, unless failed starts have ended the speed gate: then return that."""
        try:
            self.check_alive()  # a dead server is the better explanation
            if isinstance(error, SideLostError):
                names = {"baseline": self.state.plan.baseline, "candidate": variant}
                self.note_failure(names[error.side].recipe.name if error.side else "", error)
            raise error
        except ServingError:
            if spec.stage != SPEED.name:
                raise
            counts = count_starts(spec, self.stages.store)
            if not any(count.is_over for count in counts.values()):
                raise
            self.stages.progress.note(f"{variant.recipe.name}: {error.message}")
            return self.stages.run(spec)

    @property
    def is_alone(self) -> bool:
        speed = self.state.plan.policy.speed
        wanted = speed is not None and speed.quiet == "node"
        return wanted or self.stages.accelerator is not Accelerator.CUDA

    def tell_of_waiting(self, who: str) -> None:
        self.stages.progress.note(f"waiting for {who}")

    def _open(self, variant: Arm, spec: StageSpec) -> dict[str, Any]:
        """Return the servers that the stage asks."""
        if spec.stage != SPEED.name:
            return self.open(variant)
        sides = {"baseline": self.state.plan.baseline, "candidate": variant}
        wanted = SPEED.parameters_of(spec).sides
        measurement = measurement_of(spec)
        return {"endpoints": {name: self.open(sides[name], measurement) for name in wanted}}


def needs_endpoint(spec: StageSpec, store: Store) -> bool:
    """Return whether stored answers do not suffice."""
    if spec.stage != EVALUATE.name:
        return True
    before = (spec.inputs[role] for role in ("questions", "baseline") if role in spec.inputs)
    if any(store.find(each.stage, each.key) is None for each in before):
        return True
    return not is_answered(spec, store)

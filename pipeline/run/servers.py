"""The model servers of one process, and the resources that they are on.

A server stays up until nothing in this process asks it any more. With `starts: fresh` that is the
end of a piece, or of an arm's part of a block. Before this process waits, all its servers end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from artifacts.run_record import StageReport, StageStatus
from pipeline.plan.plan import Arm, serving_name
from pipeline.run.run import Run
from pipeline.serving.argument_check import engine_version
from pipeline.serving.served_model import SERVED_NAME, ExternalModel
from pipeline.serving.server import URL, Server
from pipeline.stages import FIRST_TEXTS
from pipeline.stages.block import BASELINE, ArmLostError
from pipeline.stages.starts import ServerStart, StartLedger
from prepare.errors import PrepareError, ServingError, StageLostError, StoreError
from prepare.gpus import gpu_states, visible_gpus
from prepare.interruption import hold_interruptions, is_interruption
from prepare.lots import NOTHING, Lot, Needs
from prepare.private_files import private_umask
from recipes.engine_arguments import count_gpus
from recipes.engines import find_engine


class Servers:
    """A process's servers, each from its first question until it is ended."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._facts: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, Server] = {}
        self._starts: dict[str, tuple[StartLedger, ServerStart]] = {}
        self._lot: Lot | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()

    # --- resources ------------------------------------------------------------------------------

    def take(self, needs: Needs, *, wait: bool = False) -> Lot | None:
        """Return a lot for a piece; None if others have it and `wait` is false.

        It is that of the servers that are up if it suffices. Otherwise they end first.
        """
        if self._lot is not None and self._lot.covers(needs):
            return self._lot
        self.give_back()
        lot = self._resources.enter_context(
            self.run.node.take(needs, self.run.tell_of_waiting if wait else _say_nothing, wait=wait)
        )
        self._lot = lot
        if lot is None:
            self._resources.close()
        return lot

    def end_all_but(self, names: Collection[str]) -> None:
        """End the servers of all other arms, and give the lot back if none is left."""
        self.end_servers([name for name in self._facts if name not in names])
        for name in list(self._facts):
            with suppress(ArmLostError):  # it ended while nothing asked it: it is started again
                self.check_alive([name])
        self.give_back_unused()

    @property
    def are_up(self) -> bool:
        return bool(self._facts)

    def give_back_unused(self) -> None:
        """Give the lot back if no server is up."""
        if not self._facts:
            self.give_back()

    def give_back(self) -> None:
        """End all servers, and give the lot back."""
        # The user may interrupt several times, and the servers must end before us.
        with hold_interruptions():
            self.end_all()
            self._lot = None
            self._resources.close()

    def end_all(self) -> None:
        """End all servers; a piece goes on with the lot."""
        with hold_interruptions():
            self.end_servers(list({*self._facts, *self._processes}))

    # --- servers --------------------------------------------------------------------------------

    def open(self, arm: Arm, measurement: str = "") -> dict[str, Any]:
        """Return facts on the arm's endpoint; start our server if necessary.

        `measurement` is the identity of a load's. ArmLostError: it does not start.
        """
        name = arm.recipe.name
        if measurement and name in self._starts:
            ledger, start = self._starts[name]
            self._starts[name] = (ledger, ledger.note_measurement(start, measurement))
        if facts := facts_of(arm.identity.endpoint):
            if name not in self._starts:  # this command begins to use it
                self._starts[name] = self._record_start(arm, measurement)
            return facts
        if name not in self._facts:
            self._begin(arm, measurement)
        return self._facts[name]

    def note_answers(self, names: Collection[str]) -> None:
        """Record that these endpoints answered; our own servers did when they were ready."""
        for name in names:
            if name in self._starts and not self._starts[name][1].was_ready:
                ledger, start = self._starts[name]
                self._starts[name] = (ledger, ledger.note(start, "ready"))

    def check_alive(self, names: Collection[str]) -> None:
        """Raise ArmLostError if one of these servers has ended, which is recorded."""
        for name in [name for name in names if name in self._facts]:
            try:
                self.check_process(name)
            except ServingError as error:
                lost = ArmLostError(error.message, where=error.where, hint=error.hint)
                lost.arm = name
                self.note_failure(name, lost)
                raise lost from error

    def note_failure(self, name: str, error: PrepareError) -> None:
        """Record that an arm's server failed while it was asked or loaded, and end ours."""
        if name in self._starts:
            ledger, start = self._starts.pop(name)
            ledger.note(start, "failed", error.message)
        self.end_servers([name])

    def _begin(self, arm: Arm, measurement: str) -> None:
        name = arm.recipe.name
        if FIRST_TEXTS not in arm.stages:  # a part of an ablation
            self._facts[name] = self.start_process(arm)
            return
        ledger, start = self._record_start(arm, measurement)
        try:
            self._facts[name] = self.start_process(arm)
        except ServingError as error:
            gpus = [gpu.uuid for gpu in visible_gpus()] if self.run.is_on_gpus else []
            own = len(self._facts)
            is_occupied = not own and any(state.processes for state in gpu_states(gpus))
            ledger.note(start, "disturbed" if is_occupied else "failed", error.message)
            raise
        self._starts[name] = (ledger, ledger.note(start, "ready"))

    def _record_start(self, arm: Arm, measurement: str) -> tuple[StartLedger, ServerStart]:
        ledger = StartLedger(self.run.store, arm.stages[FIRST_TEXTS].key)
        run_id = self.run.log.run_id
        return ledger, ledger.begin(measurement, run_id, is_ours=arm.is_ours)

    def end_servers(self, names: Sequence[str]) -> None:
        for name in names:
            self._facts.pop(name, None)
            self._starts.pop(name, None)
        if names:
            with hold_interruptions(), ThreadPoolExecutor() as threads:
                list(threads.map(self.stop_process, names))

    # --- processes ------------------------------------------------------------------------------

    def check_process(self, name: str) -> None:
        """Raise ServingError if the server has exited."""
        self._processes[name].check_alive()

    def stop_process(self, name: str) -> None:
        if (server := self._processes.pop(name, None)) is not None:
            server.stop()

    def start_process(self, arm: Arm) -> dict[str, Any]:
        """Start the arm's server; return facts on its endpoint."""
        engine = arm.identity.serving.engine
        environment = find_engine(engine).environment
        python = self.run.python_of(environment)
        log = self._make_log(arm.recipe.name)
        server = Server(
            python,
            arm.folder,
            arm.identity.serving,
            log,
            trust_remote_code=arm.identity.trust_remote_code,
            draft=arm.draft,
            caches=self.run.caches_of(environment),
        )
        # Stored before it starts, so that it is always stopped.
        self._processes[arm.recipe.name] = server
        try:
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
        except BaseException:
            with hold_interruptions():
                self.stop_process(arm.recipe.name)
            raise

    def _make_log(self, name: str) -> Path:
        """Return a new log: NAME.log, NAME.2.log and so on.

        Several nodes may serve the baseline.
        """
        folder = self.run.log.folder
        server_run = 1
        while True:
            log = folder / f"server.{name}{f'.{server_run}' * (server_run > 1)}.log"
            with suppress(FileExistsError), private_umask(folder):
                log.touch(exist_ok=False)
                return log
            server_run += 1

    def _await(self, server: Server, arm: Arm) -> float:
        """Start the server, and record a row for it."""
        progress = self.run.progress
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
            self.run.log.stage(
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


class BlockServers:
    """The servers of a block's arms, for the stage that measures it."""

    def __init__(self, servers: Servers, arms: Mapping[str, Arm], measurement: str, own: str):
        self._servers = servers
        self._arms = arms
        self._measurement = measurement
        self._own = own

    @contextmanager
    def up(self, names: Sequence[str], *, stay: bool) -> Iterator[dict[str, dict[str, Any]]]:
        """Serve the arms meanwhile, and afterwards if they `stay`; yield facts by arm."""
        try:
            yield {name: self._open(name) for name in names}
            self._servers.check_alive(names)  # else something else may have answered
            self._servers.note_answers(names)
        except PrepareError as error:
            self._servers.check_alive(names)  # a dead server is the better explanation
            if isinstance(error, ArmLostError) and error.arm:
                self._servers.note_failure(error.arm, error)
            raise
        finally:
            if not stay:
                self._servers.end_all()

    def leave(self, name: str, error: PrepareError) -> None:
        """Continue without the arm, or raise the error."""
        if isinstance(error, StoreError | StageLostError) or is_interruption(error):
            raise error
        run = self._servers.run
        arm = self._arms[name]
        count = StartLedger(run.store, arm.stages[FIRST_TEXTS].key).count(self._own)
        is_counted = isinstance(error, ServingError)
        if is_counted and (count.is_over or (arm.is_ours and name != BASELINE)):
            then = "its gates end" if count.is_over else "once more"
            run.progress.note(f"{name}: {count.what} failed; {then}: {error.message}")
        elif name == BASELINE:
            raise error
        else:  # an endpoint is started again by its owner
            run.tries.fail(serving_name(arm), error)

    def _open(self, name: str) -> dict[str, Any]:
        try:
            return self._servers.open(self._arms[name], self._measurement)
        except ServingError as error:
            lost = ArmLostError(error.message, where=error.where, hint=error.hint)
            lost.arm = name
            raise lost from error


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


def needs_to_serve(run: Run, arms: Sequence[Arm]) -> Needs:
    """Return what servers of these arms take on one lot."""
    ours = [arm.identity.serving for arm in arms if arm.is_ours]
    if not ours:
        return NOTHING
    if not run.is_on_gpus:
        return Needs(cores=True)
    return Needs(gpus=max(count_gpus(serving.engine_arguments) for serving in ours))


def _say_nothing(text: str) -> None:
    """Take a lot without a note; another piece may be ready."""

"""Where a variant's questions go: to servers that this run starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from artifacts.run_record import StageReport, StageStatus
from pipeline.core.errors import ServingError
from pipeline.plan.plan import VariantPlan
from pipeline.run.stage_runner import StageRunner
from pipeline.serving.engine_version import engine_version
from pipeline.serving.server import Server
from pipeline.serving.serving_names import SERVED_NAME
from recipes.catalog import BASELINE
from recipes.engines import find_engine


class Endpoints(Protocol):
    """Gives a variant's stages an endpoint to ask."""

    def open_variant(self, variant: VariantPlan) -> dict[str, Any]:
        """What a stage must know of the variant's endpoint, which is opened if necessary."""

    def check_alive(self) -> None:
        """Raise ServingError, with a reason, when an open endpoint is gone."""

    def hold_machine(self) -> Any:
        """A context in which no other run on this machine has a server up; closes at its end.

        One within another leaves the baseline's open.
        """

    def close(self) -> None:
        """Close the open endpoints, if there are any."""


class LocalServers:
    """Model servers on this machine, up from the first question until the context is left.

    Args:
        lock: file locked while a server is up; of this machine, whatever the store, so that two
            runs neither share a GPU's memory nor distort each other's speed.
    """

    def __init__(self, stages: StageRunner, lock: Path, ready_timeout_seconds: float) -> None:
        self._stages = stages
        self._lock = FileLock(lock)
        self._ready_timeout_seconds = ready_timeout_seconds
        self._servers: dict[str, Server] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._ask_version = cache(engine_version)

    def open_variant(self, variant: VariantPlan) -> dict[str, Any]:
        """Facts of the variant's server, which is started unless it is up.

        Raises:
            ServingError: it does not start.
        """
        name = variant.recipe.name
        if name not in self._facts:
            if variant.arguments is None:
                raise ValueError(f"{name} is not ours to serve")
            python = self._stages.python_of(find_engine(variant.arguments.engine).environment)
            log = self._free_log(name)
            server = Server(
                python,
                variant.model,
                variant.arguments,
                log,
                trust_remote_code=variant.trust_remote_code,
                draft=variant.draft,
            )
            # Kept before it starts, so that it is stopped whatever happens.
            self._servers[name] = server
            ready = self._start(server, name)
            facts = {"ready_seconds": ready, "command": server.command[1:]}
            self._facts[name] = {
                "url": server.url,
                "socket": str(server.address.socket),
                "model": SERVED_NAME,
                "server_python": str(python),
                "server_log": str(log),
                "server": {**facts, **server.facts()},
                "engine_version": self._ask_version(variant.arguments.engine, python),
            }
        return self._facts[name]

    def check_alive(self) -> None:
        """Raise ServingError, with the log's reason, when a server is gone; it is open no more."""
        for name, server in list(self._servers.items()):
            try:
                server.check_alive()
            except ServingError:
                self._stop(name)
                raise

    @contextmanager
    def hold_machine(self) -> Iterator[None]:
        """Wait until no other run on this machine has a server up.

        Within such a context the baseline's server stays up when a further one is left.
        """
        if self._lock.is_locked:
            try:
                yield
            finally:
                self._close([name for name in self._servers if name != BASELINE])
            return
        Path(self._lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._stages.progress.note("waiting for another run's server on this machine to end")
            self._lock.acquire()
        try:
            yield
        finally:
            # The next server must find the memory free, so ours go first.
            self.close()
            self._lock.release()

    def close(self) -> None:
        """Stop the servers that are up, and wait until their processes are gone."""
        self._close(list(self._servers))

    def _close(self, names: list[str]) -> None:
        for name in names:
            self._stop(name)

    def _stop(self, name: str) -> None:
        self._facts.pop(name, None)
        self._servers.pop(name).stop()

    def _free_log(self, variant: str) -> Path:
        """A log file of its own for each life of a variant's server."""
        folder = self._stages.log.folder
        lives = len(list(folder.glob(f"server.{variant}.*log")))
        return folder / (f"server.{variant}.{lives + 1}.log" if lives else f"server.{variant}.log")

    def _start(self, server: Server, variant: str) -> float:
        """Start it; the run's record has a row for it, though a server is no stage."""
        progress = self._stages.progress
        started = time.monotonic()
        status: StageStatus = "failed"
        try:
            ready = server.start(self._ready_timeout_seconds, progress)
            status = "ran"
        finally:
            seconds = time.monotonic() - started
            self._stages.log.stage(
                StageReport(name="serve", variant=variant, status=status, seconds=seconds, key=None)
            )
        progress.note(f"{variant}: server ready ({ready:.1f} s)")
        return ready

"""Endpoints for a model's questions: a server started here, or an external one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from artifacts.run_record import StageReport, StageStatus
from pipeline.core.errors import ServingError
from pipeline.core.private_files import private_umask
from pipeline.run.stage_runner import StageRunner
from pipeline.serving.engine_version import engine_version
from pipeline.serving.server import Server
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.serving.serving_spec import ExternalEndpoint, ServingSpec
from recipes.engines import find_engine


class Endpoints(Protocol):
    """Provider of a model's endpoint."""

    def open(self, model: ServingSpec) -> dict[str, Any]:
        """Return a stage's facts on the model's endpoint; open it if necessary."""

    def check_alive(self) -> None:
        """Raise ServingError, with a reason, if an open endpoint has ended."""

    def close(self) -> None:
        """Close the open endpoints, if there are any."""


CachesOf = Callable[[str], Mapping[str, str]]


def no_caches(environment: str) -> Mapping[str, str]:
    """Return the engine's own folders."""
    return {}


class LocalServers:
    """Model servers on this machine, running from the first question until they are closed.

    The caller has reserved the resources; see executors. External endpoints are neither started nor
    stopped.
    """

    def __init__(self, stages: StageRunner, caches_of: CachesOf = no_caches) -> None:
        self._stages = stages
        self._caches_of = caches_of
        self._servers: dict[str, Server] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._ask_version = cache(engine_version)

    def open(self, model: ServingSpec) -> dict[str, Any]:
        if model.endpoint is not None:
            return facts_of(model.endpoint)
        if model.name not in self._facts:
            self._facts[model.name] = self._start(model)
        return self._facts[model.name]

    def check_alive(self) -> None:
        for name, server in list(self._servers.items()):
            try:
                server.check_alive()
            except ServingError:
                self._stop(name)
                raise

    def close(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._stop, list(self._servers)))

    def _stop(self, name: str) -> None:
        self._facts.pop(name, None)
        self._servers.pop(name).stop()

    def _start(self, model: ServingSpec) -> dict[str, Any]:
        if model.arguments is None:
            raise ValueError(f"{model.name} is not ours to serve")
        engine = model.arguments.engine
        environment = find_engine(engine).environment
        python = self._stages.python_of(environment)
        log = self._make_log(model.name)
        server = Server(
            python,
            Path(model.folder),
            model.arguments,
            log,
            trust_remote_code=model.trust_remote_code,
            draft=Path(model.draft) if model.draft else None,
            caches=self._caches_of(environment),
        )
        # Kept before it starts, so that it is always stopped.
        self._servers[model.name] = server
        ready = self._await(server, model)
        facts = {"ready_seconds": ready, "command": server.command[1:]}
        return {
            "url": server.url,
            "socket": str(server.address.socket),
            "model": SERVED_NAME,
            "server_python": str(python),
            "server_log": str(log),
            "server": {**facts, **server.facts()},
            "engine_version": self._ask_version(engine, python),
        }

    def _make_log(self, name: str) -> Path:
        """Return a new log for a start of a model's server: NAME.log, NAME.2.log and so on.

        Serving tasks on several nodes that share the run's folder may each serve the baseline.
        """
        folder, server_run = self._stages.log.folder, 1
        while True:
            log = folder / f"server.{name}{f'.{server_run}' * (server_run > 1)}.log"
            with suppress(FileExistsError), private_umask(folder):
                log.touch(exist_ok=False)
                return log
            server_run += 1

    def _await(self, server: Server, model: ServingSpec) -> float:
        """Start it; the run's record has a row for it, although a server is no stage."""
        progress = self._stages.progress
        started = time.monotonic()
        status: StageStatus = "failed"
        try:
            ready = server.start(model.ready_timeout_seconds, progress)
            status = "ran"
        finally:
            seconds = time.monotonic() - started
            self._stages.log.stage(
                StageReport(
                    name="serve",
                    stage="serve",
                    variant=model.name,
                    status=status,
                    seconds=seconds,
                    key=None,
                )
            )
        progress.note(f"{model.name}: server ready ({ready:.1f} s)")
        return ready


def facts_of(endpoint: ExternalEndpoint) -> dict[str, Any]:
    """Return a stage's facts on an external endpoint."""
    return {
        "url": endpoint.url,
        "model": endpoint.model,
        "server_log": f"the log of {endpoint.url}",
        "server": {"url": endpoint.url, "model": endpoint.model, "ready_seconds": 0.0},
    }

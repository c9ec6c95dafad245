"""Serving of a registered version that is the judged tuple."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn

from artifacts.deploy.recheck_record import proven_tuple, rechecks_of
from artifacts.deploy.registered import RegisteredVersion, checked_folder, open_version
from artifacts.deployable import Deployable
from artifacts.registry import Version
from pipeline.environments.compile_caches import open_caches
from pipeline.environments.environment import Environment, ensure, identity
from pipeline.environments.settings import Settings
from pipeline.serving.argument_check import engine_version
from pipeline.serving.front import HOST, check_host, open_front, reserve
from pipeline.serving.server import Server
from prepare.errors import RegistryError, UsageError
from prepare.events import Progress
from prepare.hardware import hardware
from prepare.own_command import own_command
from prepare.private_files import make_folder, make_private
from prepare.store import Store
from recipes.checkpoints.checkpoint import inspect_folder
from recipes.engines import find_engine

POLL_INTERVAL_S = 2.0


class Deployment:
    """One registered version, to be served as its evidence says, never as a tag says."""

    def __init__(
        self,
        version: Version,
        weights: Path | None,
        settings: Settings,
        progress: Progress,
        *,
        trust_remote_code: bool = False,
        draft: Path | None = None,
    ) -> None:
        self.version = version
        self.weights = checked_folder(version, weights, settings, "serve")
        self._settings = settings
        self._progress = progress
        # Cached: several tuples are tried, some on other hardware.
        self._ensure = cache(lambda name, kind: ensure(name, kind, settings, progress))
        past = open_version(version, self.weights, trust_remote_code=trust_remote_code)
        self._runs_own_code = past.judged.trust_remote_code
        self.judged = past.deployable
        self.judged.check_servable(f"{version.name} version {version.version}")
        self._draft = draft
        self._accepted = accepted_tuples(past, settings.open_store())

    def differences(self) -> list[str]:
        """Return how this machine differs from every accepted tuple.

        The engine's version is last: it may build an environment.
        """
        for judged in self._accepted:
            if not self._differences_to(judged):
                self.judged = judged
                return []
        return self._differences_to(self.judged) or [
            "a recheck of this very tuple did not pass; `prepare registry` has it"
        ]

    def _differences_to(self, judged: Deployable) -> list[str]:
        kind = judged.accelerator
        environment = find_engine(judged.serving.engine).environment
        here = judged.model_copy(
            update={
                "serve_environment": identity(environment, kind, self._settings),
                "hardware": hardware(kind),
            }
        )
        if not judged.differences(here):
            here = here.model_copy(update={"engine_version": self._engine_version(judged)})
        return [str(change) for change in judged.differences(here)]

    def refuse(self, differences: list[str]) -> NoReturn:
        name = self.version.name
        version = self.version.version
        recheck = own_command("recheck", f"{name}@{version}")
        raise RegistryError(
            "this machine is not what the version was judged on: " + "; ".join(differences),
            where=f"{name} version {version}",
            hint=f"judge it here (`{recheck}` says whether its verdict "
            "stands; one that was made elsewhere counts where --store names its store), or add "
            "--allow-mismatch to serve it without a verdict that holds",
        )

    @contextmanager
    def start_server(
        self,
        port: int,
        ready_timeout_seconds: float,
        host: str = HOST,
        *,
        allow_mismatch: bool = False,
    ) -> Iterator[Server]:
        """Yield a server on a private socket, whose public port is open.

        With `allow_mismatch`, other kernels are only noted.
        """
        host = self.check_host(host)
        engine = find_engine(self.judged.serving.engine)
        draft = find_draft(self.judged, self._draft, self._settings)
        folder = self._settings.store / "served"
        make_private(folder.parent)
        make_folder(folder)
        environment = self._environment(self.judged)
        server = Server(
            environment.python,
            self.weights,
            self.judged.serving,
            folder / f"{self.version.name}.{self.version.version}.log",
            trust_remote_code=self._runs_own_code,
            draft=draft,
            caches=open_caches(self._settings.home, environment.identity, self._progress),
        )
        with reserve(host, port) as bound:
            try:
                server.start(ready_timeout_seconds, self._progress)
                if others := self._other_kernels(server):
                    if not allow_mismatch:
                        self.refuse(others)
                    self._progress.note("; ".join(others))
                key = os.environ.get(engine.key_variable, "").strip()
                with open_front(bound, server.socket, key, engine.health):
                    yield server
            finally:
                server.stop()

    def _other_kernels(self, server: Server) -> list[str]:
        same = [accepted for accepted in self._accepted if accepted.digest == self.judged.digest]
        facts = server.facts()
        differences = [accepted.kernel_differences(facts) for accepted in (*same, self.judged)]
        return list(map(str, sorted(differences, key=len)[0]))

    def check_host(self, host: str) -> str:
        """Return the address to listen on; a public one needs a key."""
        variable = find_engine(self.judged.serving.engine).key_variable
        return check_host(host, os.environ.get(variable, ""), variable)

    def watch(self, server: Server) -> NoReturn:
        """Wait until the server ends or the user interrupts."""
        while True:
            server.check_alive()
            time.sleep(POLL_INTERVAL_S)

    def _engine_version(self, judged: Deployable) -> str:
        self._progress.note("asking the engine for its version")
        return engine_version(judged.serving.engine, self._environment(judged).python)

    def _environment(self, judged: Deployable) -> Environment:
        return self._ensure(find_engine(judged.serving.engine).environment, judged.accelerator)


def find_draft(judged: Deployable, draft: Path | None, settings: Settings) -> Path | None:
    """Return the checked draft model; None for a tuple without one."""
    speculative = judged.serving.speculative
    wanted = speculative.model if speculative else None
    folder = draft.expanduser().absolute() if draft else None
    digest = None
    if folder is not None and wanted is not None:
        digest = inspect_folder(folder, settings.digests, is_head=True).digest
    if digest != wanted or (folder is not None and wanted is None):
        raise UsageError(
            f"it was judged with the draft model of digest {wanted[:12]}"
            if wanted
            else "it was judged without a draft model",
            where=f"--draft-model {draft or ''}".strip(),
            hint="name the folder of that checkpoint: --draft-model FOLDER"
            if wanted
            else "leave --draft-model out",
        )
    return folder


def accepted_tuples(past: RegisteredVersion, store: Store) -> list[Deployable]:
    """Return the tuples for which the verdict holds: judged, then rechecked ones."""
    rechecks = rechecks_of(past.version)
    refuted = {recheck.tuple_digest for recheck in rechecks if not recheck.stands}
    proven = [proven_tuple(recheck, past, store) for recheck in rechecks if recheck.stands]
    return [
        *([past.deployable] if past.deployable.digest not in refuted else []),
        *(recheck for recheck in proven if recheck is not None),
    ]

"""Serves a registered version on this machine, once it is seen to be the tuple that was judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from artifacts.registry.registry import Version
from pipeline.deployment import (
    JudgedTuple,
    accelerator_of,
    accepted_tuples,
    check_files,
    engine_version_of,
    folder_of,
)
from pipeline.digest import FileDigests
from pipeline.environments.environment import Environment, ensure, identity
from pipeline.errors import RegistryError, ServingError
from pipeline.events import Progress
from pipeline.serving import Server, port_is_free
from pipeline.settings import Settings

SECONDS_BETWEEN_LOOKS = 2.0


class Deployment:
    """One registered version, to be served here.

    Args:
        version: as registered.
        weights: folder of its files; None: the version's own source.
        settings: where environments and logs are.
        progress: hears of what takes time.

    Raises:
        RegistryError: its files are not on this machine, or not those that were judged.
    """

    def __init__(
        self, version: Version, weights: Path | None, settings: Settings, progress: Progress
    ) -> None:
        self.version = version
        self.judged = JudgedTuple.of(version)
        self.weights = folder_of(version, weights, "prepare serve {reference} --weights FOLDER")
        self._settings = settings
        self._progress = progress
        check_files(version, self.weights, FileDigests(settings.home / "digests.json"))

    def differences(self) -> list[str]:
        """Members in which this machine is not the one judged on; builds an environment only
        when it is the one that is wanted.

        Where a recheck has passed on what is here, nothing differs, and it is served as rechecked.
        """
        for judged in accepted_tuples(self.version):
            if not self._differences_to(judged):
                self.judged = judged
                return []
        return self._differences_to(self.judged) or [
            "a recheck of this very tuple did not pass; `prepare registry show` tells of it"
        ]

    def _differences_to(self, judged: JudgedTuple) -> list[str]:
        here = identity("serve", accelerator_of(judged), self._settings)
        differing = judged.differences(here)
        if here == judged.environment:
            version = self._engine_version
            if version != judged.engine_version:
                differing.insert(
                    0, f"engine version: judged {judged.engine_version}, here {version}"
                )
        return differing

    def refuse(self, differences: list[str]) -> NoReturn:
        """Raise RegistryError with what differs."""
        raise RegistryError(
            "this machine is not what the version was judged on: " + "; ".join(differences),
            where=f"{self.version.name} version {self.version.version}",
            cure="judge it here (`prepare model` makes its verdict for this machine), or add "
            "--anyway to serve it without a verdict that holds",
        )

    @contextmanager
    def serving(self, port: int, ready_timeout_seconds: float) -> Iterator[Server]:
        """A server that answers; raises ServingError when it does not start."""
        if not port_is_free(port):
            raise ServingError(
                f"port {port} is taken", where=f"127.0.0.1:{port}", cure="choose another --port"
            )
        folder = self._settings.store / "served"
        folder.mkdir(parents=True, exist_ok=True)
        server = Server(
            self._environment.python,
            self.weights,
            self.judged.arguments,
            folder / f"{self.version.name}.{self.version.version}.log",
            trust_remote_code=self.judged.trust_remote_code,
            port=port,
        )
        try:
            server.start(ready_timeout_seconds, self._progress)
            yield server
        finally:
            server.stop()

    def watch(self, server: Server) -> NoReturn:
        """Stay until the server ends (ServingError) or we are interrupted."""
        while True:
            server.check_alive()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    @cached_property
    def _engine_version(self) -> str:
        return engine_version_of(self._environment)

    @cached_property
    def _environment(self) -> Environment:
        return ensure("serve", accelerator_of(self.judged), self._settings, self._progress)

"""Serves a registered version on this machine, once it is seen to be the tuple that was judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from artifacts.registry.registry import Version
from pipeline.deployment import JudgedTuple, accelerator_of, check_files, engine_version_of
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
        self.weights = (weights or Path(version.source)).absolute()
        self._settings = settings
        self._progress = progress
        if weights is None and not Path(version.source).is_dir():
            raise RegistryError(
                "the version's files are not on this machine",
                where=version.source,
                cure=f"prepare pull {version.name}@{version.version} FOLDER, then "
                f"prepare serve {version.name}@{version.version} --weights FOLDER",
            )
        check_files(version, self.weights, FileDigests(settings.home / "digests.json"))

    def differences(self) -> list[str]:
        """Members in which this machine is not the one judged on; builds an environment only
        when it is the one that is wanted.
        """
        accelerator = accelerator_of(self.judged)
        here = identity("serve", accelerator, self._settings)
        differing = self.judged.differences(here)
        if here == self.judged.environment:
            version = engine_version_of(self._environment)
            if version != self.judged.engine_version:
                differing.insert(
                    0, f"engine version: judged {self.judged.engine_version}, here {version}"
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
    def _environment(self) -> Environment:
        return ensure("serve", accelerator_of(self.judged), self._settings, self._progress)

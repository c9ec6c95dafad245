"""Model server: an engine's OpenAI server as a supervised child process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from pipeline.core.errors import ServingError
from pipeline.core.events import Progress
from pipeline.core.file_locks import held_descriptors
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import server_environment
from pipeline.core.supervised_process import SupervisedProcess
from pipeline.environments.cuda_home import compiler_variables
from pipeline.serving.listening_host import HOST
from pipeline.serving.server_address import ServerAddress, private_socket
from pipeline.serving.server_log import engine_facts, find_reason, hint_for
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from recipes.engines import LaunchSpec, find_engine

POLL_SECONDS = 0.5


class Server:
    """A model server on this machine; the caller must stop it.

    Args:
        port: on the loopback, without a key; None for a private socket.
        caches: variables for compile caches; the shell's and the profile's take precedence.
        draft: folder of the draft model, if the arguments use one.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        arguments: ServingArguments,
        log: Path,
        *,
        trust_remote_code: bool = False,
        port: int | None = None,
        caches: Mapping[str, str] | None = None,
        draft: Path | None = None,
    ) -> None:
        self._log, self._log_begins = log, 0
        self._model = model
        self._python = python
        self._engine = find_engine(arguments.engine)
        self._arguments = arguments.for_engine(str(draft or ""))
        self._trust_remote_code = trust_remote_code
        given = server_environment(os.environ, arguments.environment, python=python)
        compiler = compiler_variables(python, arguments.environment)
        self._environment = {**(caches or {}), **given, **compiler}
        self._has_port = port is not None
        self.address = ServerAddress(None, port or 0)
        self._process: SupervisedProcess | None = None

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def socket(self) -> Path:
        """Return the private socket of a started server; ValueError if it has a port."""
        if self.address.socket is None:
            raise ValueError("the server has no socket")
        return self.address.socket

    @property
    def command(self) -> list[str]:
        launch = LaunchSpec(
            model=str(self._model),
            arguments=self._arguments,
            trust_remote_code=self._trust_remote_code,
            name=SERVED_NAME,
            host=HOST,
            port=self.address.port,
            socket=str(self.address.socket or ""),
        )
        return self._engine.command(str(self._python), launch)

    def facts(self) -> dict[str, str]:
        return engine_facts(self._log, self._engine, self._log_begins)

    def start(self, timeout_seconds: float, progress: Progress) -> float:
        """Start the server and wait for its first answer; return the seconds that took."""
        if not self._has_port:
            self.address = private_socket()
        try:
            return self._start_process(timeout_seconds, progress)
        except ServingError:
            self.stop()
            raise

    def _start_process(self, timeout_seconds: float, progress: Progress) -> float:
        with open_log(self._log) as log_file:
            self._log_begins = log_file.seek(0, os.SEEK_END)  # after those of earlier starts
            process = self._process = SupervisedProcess(
                self.command,
                environment=self._environment,
                output=log_file,
                held_descriptors=held_descriptors(),
            )
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            code = process.poll()
            if code is not None:
                raise self._failure(f"the model server {describe_exit(code)} while starting")
            if self._is_ready():
                break
            if waited > timeout_seconds:
                raise self._failure(f"the model server was not ready after {waited:.0f} s")
            progress.advance("start the server", int(waited), None, "s")
            time.sleep(POLL_SECONDS)
        self._warm_up()
        self.check_alive()
        elapsed = time.monotonic() - started
        whole = max(int(elapsed), 1)
        progress.advance("start the server", whole, whole, "s")
        return elapsed

    def check_alive(self) -> None:
        """Raise ServingError if the server has exited, or another process uses its port."""
        if self._process is None:
            return
        if (code := self._process.poll()) is not None:
            raise self._failure(f"the model server {describe_exit(code)}")
        # No other user can enter a socket's folder.
        if self._has_port and not self.address.is_owned_by(self._process.pid):
            raise self._failure("another process listens in place of the model server")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
            deadline = time.monotonic() + 10
            while not self.address.is_free() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        self.address.remove()

    def _is_ready(self) -> bool:
        """Return whether this server responds, not another process that took its port."""
        import httpx

        if self._process is None or not self.address.is_owned_by(self._process.pid):
            return False
        try:
            with self.address.client(timeout_seconds=5) as client:
                if client.get(self._engine.health).status_code != 200:
                    return False
                served = self._engine.model_in(client.get("/v1/models").json())
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return False
        return served == str(self._model)

    def _warm_up(self) -> None:
        import httpx

        request = {"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
        try:
            with self.address.client(timeout_seconds=300) as client:
                answer = client.post("/v1/completions", json=request)
        except httpx.HTTPError as error:
            raise self._failure(f"the model server did not respond: {error}") from error
        if answer.status_code != 200:
            raise self._failure(
                f"the model server responded with {answer.status_code}: {answer.text}"
            )

    def _failure(self, what: str) -> ServingError:
        reason = find_reason(self._log, self._engine)
        return ServingError(
            what + (f"; its log says: {reason}" if reason else ""),
            where=str(self._log),
            hint=hint_for(reason, self._engine),
        )


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    if code == 137:  # 128 + SIGKILL, which only the kernel sends
        return "was killed, most likely because the machine ran out of memory,"
    return f"ended with exit code {code}"

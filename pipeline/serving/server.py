"""Model server: an engine's OpenAI server as a supervised child process.

A run's server has a Unix socket in a private folder: no other user can query it, load it, read its
metrics, or replace it. Other programs reach it through `front.py`. A server with a port is on the
loopback, and the listening socket must belong to the server's process group.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ServingError
from pipeline.core.events import Progress
from pipeline.core.file_locks import held_descriptors
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import server_environment
from pipeline.core.supervisor import SupervisedProcess
from pipeline.environments.cuda_home import compiler_variables
from pipeline.serving.listening_host import HOST
from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.serving_arguments import ServingArguments
from recipes.engines import Engine, LaunchSpec, find_engine

if TYPE_CHECKING:
    import httpx

MAX_SOCKET_PATH_BYTES = 107  # bytes; of Linux's sockaddr_un
_LISTENING = "0A"
# The loopback and all addresses, as in the kernel's tables: words in the machine's order.
_ADDRESSES = ("0100007F", "0" * 8, "0" * 32)


@dataclass(frozen=True)
class ServerAddress:
    """A Unix socket or a port."""

    socket: Path | None  # in a private folder; None for a port
    port: int = 0  # on the loopback; 0 for a socket

    @property
    def url(self) -> str:
        if self.socket is not None:
            return "http://localhost"
        return f"http://{HOST}:{self.port}"

    def client(self, timeout_seconds: float) -> httpx.Client:
        return open_client(self.url, self.socket, timeout_seconds)

    def is_owned_by(self, group: int) -> bool:
        if self.socket is None:
            inodes = _listening_inodes(self.port)
            return bool(inodes) and inodes <= _find_sockets(group)
        pid = _find_listener(self.socket)
        with contextlib.suppress(ProcessLookupError):
            return pid is not None and os.getpgid(pid) == group
        return False

    def is_free(self) -> bool:
        return self.socket is not None or port_is_free(self.port)

    def remove(self) -> None:
        if self.socket is not None:
            shutil.rmtree(self.socket.parent, ignore_errors=True)


def private_socket() -> ServerAddress:
    """Create a private folder for a socket; raise ServingError if that fails."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mkdtemp's folder is 0700
        try:
            folder = Path(tempfile.mkdtemp(prefix="prepare-", dir=parent))
        except OSError:
            continue
        path = folder / "server"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return ServerAddress(path)
        folder.rmdir()
    raise ServingError(
        "cannot create a folder for the model server's socket",
        where=tempfile.gettempdir(),
        hint="set TMPDIR to a writable folder with a short path",
    )


def open_client(url: str, through: Path | None, timeout_seconds: float) -> httpx.Client:
    """Return an HTTP client for the URL, through a Unix socket if given."""
    import httpx

    return httpx.Client(
        base_url=url,
        timeout=timeout_seconds,
        trust_env=False,
        transport=httpx.HTTPTransport(uds=str(through)) if through else None,
    )


def port_is_free(port: int) -> bool:
    """Return whether no process listens on the loopback's port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) != 0


def _find_listener(path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        size = struct.calcsize("3i")  # ucred: process, user, group
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                is_there = int(number, 16) == port and address in _ADDRESSES
                if is_there and fields[3] == _LISTENING:
                    found.add(fields[9])
    return found


def _find_sockets(group: int) -> set[str]:
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            if os.getpgid(int(process.name)) != group:
                continue
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found


_NOISE = re.compile(
    r"^(\([\w-]+ pid=\d+\)\s*)?(ERROR|CRITICAL|WARNING|INFO)?\s*[\d :.-]*(\[[^\]]*\])?\s*"
)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Killed)\b.*: \S|^.*error: ")


def find_reason(log: Path, engine: Engine) -> str:
    """Return the first line with an exception that echoes no other.

    Without one, return the first echo, or the last line.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    texts = [_NOISE.sub("", line).strip() for line in lines]
    named = [number for number, text in enumerate(texts) if _EXCEPTION.match(text)]
    telling = [n for n in named if not any(words in texts[n] for words in engine.echoes)]
    if not named:
        return lines[-1].strip()[:500] if lines else ""
    first = (telling or named)[0]
    # pydantic describes the fault in the next lines: a key, then the fault.
    is_pydantic = re.search(r"\d+ validation errors? for", texts[first]) is not None
    reason = " ".join(texts[first : first + 3]) if is_pydantic else texts[first]
    return reason.partition(" [type=")[0][:500]


# Hints for every engine, after the engine's own.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"space in /dev/shm",
        "give the container more shared memory: --shm-size 1g of podman and docker run, in "
        "Kubernetes an emptyDir of medium Memory at /dev/shm",
    ),
    (
        r"out of memory|kv cache (blocks|space|memory|size)|memory",
        "reduce the server's memory: a profile with a smaller max-model-len, max-num-seqs "
        "or KV cache, more tensor parallelism, or a machine with more memory",
    ),
    (
        r"not supported|unsupported",
        "this engine version does not serve this architecture; see its supported models",
    ),
    (r"address already in use", "another program took the port; run the command again"),
)


def hint_for(reason: str, engine: Engine) -> str:
    """Return a hint for a server's failure reason."""
    for words, hint in (*engine.hints, *_HINTS):
        if re.search(words, reason, re.IGNORECASE):
            return hint
    return "read the log; a profile (--profile PATH) can change the engine's arguments"


def engine_facts(log: Path, engine: Engine, start: int = 0) -> dict[str, str]:
    """Return report facts from the engine's log, from that byte on: KV cache size, kernels."""
    return engine.facts_in(
        log.read_bytes()[start:].decode(errors="replace") if log.is_file() else ""
    )


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

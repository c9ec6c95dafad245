"""Model server: an engine's OpenAI server as a supervised child process.

Its Unix socket is in a private folder. Others reach it through `front.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.environments.cuda_home import compiler_variables
from pipeline.serving.front import HOST
from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError
from prepare.events import Progress
from prepare.file_locks import held_descriptors
from prepare.private_files import open_log
from prepare.process_environment import server_environment
from prepare.supervisor import SupervisedProcess
from prepare.untrusted import parse_json
from recipes.engines import Engine, LaunchSpec, find_engine
from recipes.engines.engine import KV_DTYPE
from recipes.engines.kv_report import NOT_TOLD, KvReport, read_report
from recipes.weights.kv_scales import check_cache

if TYPE_CHECKING:
    import httpx

MAX_SOCKET_FOLDER_BYTES = 107 - 37  # of Linux's sockaddr_un, less the name of an engine's socket
REPORTS = "reports"  # folder next to the socket
URL = "http://localhost"  # of a server, through its socket


def private_socket() -> Path:
    """Create a socket's private folder, or raise ServingError."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mkdtemp's folder is 0700
        if len(os.fsencode(parent)) <= MAX_SOCKET_FOLDER_BYTES:
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="prepare-", dir=parent)) / "server"
    raise ServingError(
        "cannot create a folder for the model server's socket",
        where=tempfile.gettempdir(),
        hint="set TMPDIR to a writable folder with a short path",
    )


_NOISE = re.compile(
    r"^(\([\w-]+ pid=\d+\)\s*)?(ERROR|CRITICAL|WARNING|INFO)?\s*[\d :.-]*(\[[^\]]*\])?\s*"
)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Killed)\b.*: \S|^.*error: ")


# By SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL or SIGSEGV; exceptions that follow are echoes.
_KILLED = re.compile(r"Worker proc .* died unexpectedly \(exit code: -(4|6|7|8|9|11)\)")
_QUOTED = re.compile(r"^(\([\w-]+ pid=\d+\))?\s+warn(ings\.warn|_once)?\(|^\s*$")


def find_reason(log: Path, engine: Engine, start: int = 0) -> str:
    """Return the log's first exception that echoes no other, or its last line.

    The source line under a warning is neither. `start` is in bytes.
    """
    try:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line for line in lines if not _QUOTED.search(line)]
    texts = [_NOISE.sub("", line).strip() for line in lines]
    if killed := next(filter(None, map(_KILLED.search, texts)), None):
        return killed[0][:500]
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
        r"exit code: -4\)",
        "the CPU does not take an instruction of the engine's kernels: set "
        "PREPARE_CPU_FEATURES=avx2, and run the command again",
    ),
    (
        r"exit code: -9\)",
        "most likely the machine ran out of memory: a profile with a smaller max-model-len or KV "
        "cache, or a machine with more",
    ),
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
    """Return facts from the engine's log: KV cache size, kernels."""
    return engine.facts_in(
        log.read_bytes()[start:].decode(errors="replace") if log.is_file() else ""
    )


POLL_SECONDS = 0.5


class Server:
    """A model server on this machine; the caller must stop it.

    The shell's and profile's variables precede `caches`.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        arguments: ServingArguments,
        log: Path,
        *,
        trust_remote_code: bool = False,
        caches: Mapping[str, str] | None = None,
        draft: Path | None = None,
    ) -> None:
        self._log = log
        self._log_begins = 0
        self._model = model
        self._python = python
        self._engine = find_engine(arguments.engine)
        self._arguments = arguments.for_engine(str(draft or ""))
        self._trust_remote_code = trust_remote_code
        given = server_environment(os.environ, arguments.environment, python=python)
        compiler = compiler_variables(python, arguments.environment)
        self._environment = {**(caches or {}), **given, **compiler}
        self._socket: Path | None = None
        self._process: SupervisedProcess | None = None
        self._report: KvReport | None = None

    @property
    def socket(self) -> Path:
        """Return a started server's socket, or raise ValueError."""
        if self._socket is None:
            raise ValueError("the server was not started")
        return self._socket

    def client(self, timeout_seconds: float) -> httpx.Client:
        """Return an HTTP client of the started server."""
        import httpx

        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(
            base_url=URL, timeout=timeout_seconds, trust_env=False, transport=transport
        )

    @property
    def command(self) -> list[str]:
        launch = LaunchSpec(
            model=str(self._model),
            arguments=self._arguments,
            trust_remote_code=self._trust_remote_code,
            name=SERVED_NAME,
            host=HOST,
            socket=str(self._socket or ""),
        )
        return self._engine.command(str(self._python), launch)

    def facts(self) -> dict[str, str]:
        """Return what the engine's log tells, and its objects of the KV cache."""
        report = self._report
        told = report.facts() if report else {"kv_cache": NOT_TOLD, "kv_scales": NOT_TOLD}
        return {**engine_facts(self._log, self._engine, self._log_begins), **told}

    def start(self, timeout_seconds: float, progress: Progress, name: str = "") -> float:
        """Start the server; return the seconds until its first answer.

        `name` is the arm's, for the progress.
        """
        self._socket = private_socket()
        if self._socket.parent.parent != Path(tempfile.gettempdir()):  # too long for its sockets
            self._environment |= {"TMPDIR": str(self._socket.parent)}
        self._have_reported(self._socket.parent / REPORTS)
        try:
            task = f"{name}: start the server".removeprefix(": ")
            return self._start(timeout_seconds, progress, task)
        except ServingError:
            self.stop()
            raise

    def _start(self, timeout_seconds: float, progress: Progress, task: str) -> float:
        with open_log(self._log) as log_file:
            self._log_begins = log_file.seek(0, os.SEEK_END)  # after those of earlier starts
            process = self._process = SupervisedProcess(
                self.command,
                environment=self._environment,
                output=log_file,
                held_descriptors=held_descriptors(),
                temporary=self.socket.parent,
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
            progress.advance(task, int(waited), None, "s")
            time.sleep(POLL_SECONDS)
        self._check_cache()
        self._warm_up()
        self.check_alive()
        elapsed = time.monotonic() - started
        whole = max(int(elapsed), 1)
        progress.advance(task, whole, whole, "s")
        return elapsed

    def _have_reported(self, folder: Path) -> None:
        """Let the engine report on its KV cache into a new folder."""
        folder.mkdir(mode=0o700)
        for name, value in self._engine.prepare_report(folder).items():
            own = self._environment.get(name) if name == "PYTHONPATH" else None
            self._environment[name] = os.pathsep.join(filter(None, [value, own]))

    def _check_cache(self) -> None:
        """Raise ServingError if the KV cache is not what profile and checkpoint say."""
        self._report = read_report(self.socket.parent / REPORTS)
        log = self._log.read_bytes()[self._log_begins :].decode(errors="replace")
        kv_cache_dtype = str(self._arguments.get(KV_DTYPE, "auto"))
        check_cache(self._model, self._report, log, self._engine, kv_cache_dtype)

    def check_alive(self) -> None:
        """Raise ServingError if the server has exited."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise self._failure(f"the model server {describe_exit(code)}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._socket is not None:
            shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _is_ready(self) -> bool:
        """Return whether this server serves its model."""
        import httpx

        with socket.socket(socket.AF_UNIX) as probe:  # httpx leaks its own if nothing listens
            if probe.connect_ex(str(self.socket)):
                return False
        try:
            with self.client(timeout_seconds=5) as client:
                if client.get(self._engine.health).status_code != 200:
                    return False
                served = self._engine.model_in(parse_json(client.get("/v1/models").content))
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return False
        return served == str(self._model)

    def _warm_up(self) -> None:
        import httpx

        request = {"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
        try:
            with self.client(timeout_seconds=300) as client:
                answer = client.post("/v1/completions", json=request)
        except httpx.HTTPError as error:
            raise self._failure(f"the model server did not respond: {error}") from error
        if answer.status_code != 200:
            raise self._failure(
                f"the model server responded with {answer.status_code}: {answer.text}"
            )

    def _failure(self, what: str) -> ServingError:
        reason = find_reason(self._log, self._engine, self._log_begins)
        return ServingError(
            what + (f"; its log says: {reason}" if reason else ""),
            where=str(self._log),
            hint=hint_for(reason, self._engine),
        )


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    if code == 137:  # 128 + SIGKILL, which only the kernel sends
        return "was killed (most likely the machine ran out of memory)"
    return f"ended with exit code {code}"

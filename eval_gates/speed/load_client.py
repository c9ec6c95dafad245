"""Client that sends one load and times every answer, in a separate process.

aiohttp takes 55 us per streamed part, httpx 200 us, which would be measured. Endpoints are not
trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

from eval_gates.engine_metrics import open_session, read_counters
from eval_gates.reply_forms import find_error
from eval_gates.speed.load_prompts import Prompt
from prepare.errors import ServingError
from prepare.process_environment import ENDPOINT_KEY

TICK_SECONDS = 0.02
LOOK_SECONDS = 1.0  # between two readings of the machine's runnable threads
LOAD_AVERAGE = Path("/proc/loadavg")
BYTES_OF_AN_ANSWER = 1 << 17  # besides its tokens: usage, an error in words
BYTES_OF_A_TOKEN = 1 << 12  # vLLM's part of one token is about 300
ANSWER_SECONDS = 3600.0
SILENT_SECONDS = 600.0  # in a queue, and between two parts of an answer
MAX_TOKENS = 10_000_000
MAX_ERROR_CHARACTERS = 300
COLUMNS = ("start_s", "ttft_s", "end_s", "input_tokens", "output_tokens", "error")

Row = tuple[float, float | None, float | None, int, int, str | None]


class ClientClock:
    """Seconds since a load began, and the lateness of scheduled events."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._late: list[float] = []  # of ticks
        self._sent_late: list[float] = []  # of requests that had a time
        self._runnable: list[int] = []

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def __aenter__(self) -> Self:
        self._began = time.perf_counter()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    async def sleep_until(self, second: float) -> None:
        """Wait for the second, and note the lateness."""
        await asyncio.sleep(max(0.0, second - self.now()))
        self._sent_late.append(max(0.0, self.now() - second))

    def facts(self) -> dict[str, float]:
        """Return a LoadRun's fields on the client."""
        if not self._late:
            return {}
        late = [sorted(delays) for delays in (self._late, self._sent_late) if delays]
        worst = max(delays[int(0.99 * (len(delays) - 1))] for delays in late)
        facts = {"client_lag_s": worst, "client_late_s": sum(self._late)}
        if self._runnable:
            facts["runnable"] = sum(self._runnable) / len(self._runnable)
        return facts

    async def _tick(self) -> None:
        looked = -LOOK_SECONDS
        while True:
            before = self.now()
            if before - looked >= LOOK_SECONDS and (threads := count_runnable()) is not None:
                looked = before
                self._runnable.append(threads)
            await asyncio.sleep(TICK_SECONDS)
            self._late.append(max(0.0, self.now() - before - TICK_SECONDS))


def count_runnable() -> int | None:
    """Return this machine's running and ready threads, if known."""
    try:
        return int(LOAD_AVERAGE.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


class BadAnswerError(Exception):
    """An answer that counts as a failed request."""


@dataclass(frozen=True)
class LoadTarget:
    """The endpoint under load."""

    url: str  # without `/v1`
    model: str  # as requests call it
    socket: str | None  # of a server that has one
    counters: Mapping[str, str]  # the engine's names of its counters


@dataclass(frozen=True)
class LoadClient:
    """Sends the requests of a workload.

    `at_once` requests are in flight, or (None) they have given times, after `warmup_s`. With
    `is_natural`, the model ends its answers.
    """

    at_once: int | None
    warmup_s: float
    is_natural: bool = False

    def measure(
        self, target: LoadTarget, prompts: Sequence[Prompt], at: Sequence[float] = ()
    ) -> dict[str, Any]:
        """Send one load, wait for all answers, and return the LoadRun's measured fields.

        A readiness check's prompt would be in the cache. `at` has the seconds of sending, without
        `at_once`.
        """
        return asyncio.run(self._measure(target, prompts, at))

    async def _measure(
        self, target: LoadTarget, prompts: Sequence[Prompt], at: Sequence[float]
    ) -> dict[str, Any]:
        async with open_session(target.socket) as session:
            read = partial(read_counters, session, target.url, target.counters)
            before = await read()
            clock = ClientClock()
            unix = time.time()
            load = _Load(self, target, prompts, clock, session)
            async with clock:
                warm = asyncio.create_task(self._count_when_warm(read, load))
                rows = await (load.send_at(at) if at else load.send_at_once(self.at_once or 1))
                lasted = clock.now()
            warm.cancel()
            begun = (await asyncio.gather(warm, return_exceptions=True))[0]
            after = await read()
        if all(row[-1] is not None for row in rows):
            raise ServingError(f"not one of {len(rows)} requests was answered: {rows[0][-1]}")
        rows.sort(key=lambda row: row[0])
        asked = [[prompt.text, prompt.output_tokens] for prompt in prompts]
        is_begun = isinstance(begun, dict) and begun != after
        return {
            "prompts_sha256": hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
            "started": unix,
            "seconds": max((row[2] for row in rows if row[2] is not None), default=lasted),
            "requests": {name: [row[n] for row in rows] for n, name in enumerate(COLUMNS)},
            # The first requests of a prefix cannot find it in the cache, so they do not count.
            "before": begun if is_begun else before,
            "after": after,
            "cpus": os.cpu_count(),
            **clock.facts(),
        }

    async def _count_when_warm(self, read: Callable[[], Any], load: _Load) -> Any:
        """Return the counters after the first wave or warm-up."""
        if self.at_once is None:
            await asyncio.sleep(self.warmup_s)
        else:
            await load.first_wave.wait()
        return await read()


class _Load:
    """One load in progress."""

    def __init__(
        self,
        client: LoadClient,
        target: LoadTarget,
        prompts: Sequence[Prompt],
        clock: ClientClock,
        session: Any,
    ) -> None:
        self._client = client
        self._target = target
        self._clock = clock
        self._session = session
        self._prompts = prompts
        self._rows: list[Row] = []
        self.first_wave = asyncio.Event()
        key = os.environ.get(ENDPOINT_KEY)
        self._headers = {
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }

    async def send_at_once(self, number: int) -> list[Row]:
        """Keep `number` requests in flight."""
        rest = iter(self._prompts)
        done = count(1)

        async def send_one_by_one() -> None:
            for place, prompt in enumerate(rest):
                await self._ask(prompt)
                if place == 0 and next(done) >= min(number, len(self._prompts)):
                    self.first_wave.set()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(number):
                tasks.create_task(send_one_by_one())
        return self._rows

    async def send_at(self, at: Sequence[float]) -> list[Row]:
        """Send each request at its time, also before earlier answers."""
        async with asyncio.TaskGroup() as tasks:
            for second, prompt in zip(at, self._prompts, strict=True):
                await self._clock.sleep_until(second)
                tasks.create_task(self._ask(prompt))
        return self._rows

    async def _ask(self, prompt: Prompt) -> None:
        import aiohttp

        began = self._clock.now()
        try:
            first, last, asked, came = await self._read(prompt)
        except (aiohttp.ClientError, BadAnswerError, OSError, TimeoutError, ValueError) as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_ERROR_CHARACTERS]
            words = words.encode(errors="replace").decode()  # half of a surrogate pair is no text
            self._rows.append((began, None, None, prompt.input_tokens, 0, words))
        else:
            self._rows.append((began, first - began, last, asked, came, None))

    async def _read(self, prompt: Prompt) -> tuple[float, float, int, int]:
        """Return first and last token's seconds, and both texts' tokens."""
        import aiohttp

        body = {
            "model": self._target.model,
            "prompt": prompt.text,
            "max_tokens": prompt.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if self._client.is_natural else {"ignore_eos": True}),
            **prompt.overrides,
        }
        first = last = None
        usage: Any = None
        async with self._session.post(
            f"{self._target.url}/v1/completions",
            json=body,
            headers=self._headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=ANSWER_SECONDS, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS
            ),
        ) as response:
            if response.status != 200:
                raise BadAnswerError(f"the endpoint answered {await _words_of(response)}")
            if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise BadAnswerError(f"the answer is compressed ({packed[:20]!a})")
            limit = BYTES_OF_AN_ANSWER + BYTES_OF_A_TOKEN * prompt.output_tokens
            async for part in _parts(response, limit):
                if (error := find_error(part)) is not None:
                    raise BadAnswerError(f"the endpoint says: {error[0]}")
                if part.get("choices"):
                    last = self._clock.now()
                    first = last if first is None else first
                # llama.cpp has the usage in the part of the last choice.
                usage = part.get("usage") or usage
        if first is None or last is None:
            raise BadAnswerError("no token came")
        came = _tokens(usage, "completion_tokens")
        asked = _tokens({"prompt_tokens": prompt.input_tokens, **usage}, "prompt_tokens")
        # A shorter answer is faster, and a server could report more tokens than it sent.
        wanted = prompt.output_tokens
        is_whole = 0 < came <= wanted if self._client.is_natural else came == wanted
        if not is_whole:
            raise BadAnswerError(f"{came} tokens came, {wanted} were asked for")
        return first, last, asked, came


async def _words_of(response: Any) -> str:
    """Return an error's status and the start of its text."""
    if 300 <= response.status < 400:
        return f"{response.status}: redirects are not followed"
    async for chunk in response.content.iter_any():
        return f"{response.status}: {chunk[:MAX_ERROR_CHARACTERS].decode(errors='replace')}"
    return str(response.status)


async def _parts(response: Any, limit: int) -> Any:
    """Yield the JSON objects of server-sent events."""
    came = 0
    rest = b""
    async for chunk in response.content.iter_any():
        came += len(chunk)
        if came > limit:
            raise BadAnswerError(f"the answer is larger than {limit:,} bytes")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (part := _parsed(line)) is not None:
                yield part
    if (part := _parsed(rest)) is not None:
        yield part


def _parsed(line: bytes) -> dict[str, Any] | None:
    content = line.strip().removeprefix(b"data:").strip()
    # A gateway's error of status 200 is one object, and no stream.
    if not line.startswith((b"data:", b'{"')) or content == b"[DONE]":
        return None
    # The plain reader is ten times as fast as the one for untrusted files. The answer's limit
    # bounds memory, counts are checked, and text is only repeated in errors.
    try:
        part = json.loads(content)  # noqa: TID251
    except RecursionError as error:
        raise BadAnswerError("a part of the answer is nested too deep") from error
    if not isinstance(part, dict):
        raise BadAnswerError("a part of the answer is no object")
    return part


def _tokens(usage: Any, name: str) -> int:
    """Return a server's count of tokens, or raise BadAnswerError."""
    if not isinstance(usage, dict) or name not in usage:
        raise BadAnswerError("the endpoint does not say how many tokens the answer has")
    count = usage[name]
    if type(count) is not int or not 0 <= count <= MAX_TOKENS:
        raise BadAnswerError(f"the endpoint says that there are {str(count)[:40]!a} tokens")
    return count

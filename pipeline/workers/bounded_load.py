"""Limits for vLLM's load generator: requests go to the endpoint only, and answers are bounded.

Its own client follows redirects with the prompts in them, reads unbounded answers, unpacks
unrequested compression, waits six hours, and accepts counts that are no numbers. Here each of these
is a failed request with a cause.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from eval_gates.suites.bounded_session import StreamedResponse, post_bounded
from pipeline.core.untrusted.json import parse_json

BYTES_OF_AN_ANSWER = 1 << 17  # besides its tokens: headers of chunks, usage, an error in words
BYTES_OF_A_TOKEN = 1 << 12  # vLLM's chunk of one token is about 300
ANSWER_SECONDS = 3600.0
SILENT_SECONDS = 600.0  # in a queue, and between two parts of an answer
LAST_BYTES = 1 << 16  # of an answer; the part with the usage is in them
MAX_TOKENS = 10_000_000
BACKEND = "openai"  # of vLLM's request functions, the one that loads are sent with

Send = Callable[..., Awaitable[Any]]
"""A request function of vLLM's: (its input, session, progress bar) to its output."""


def bound_load(serve: Any) -> None:
    """Apply the limits to the module `vllm.benchmarks.serve`, permanently."""
    client = serve.aiohttp
    if isinstance(client.ClientSession, functools.partial):
        return
    limit = client.ClientTimeout(
        total=ANSWER_SECONDS, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS
    )
    # What is packed would be unpacked while its headers are read.
    client.ClientSession = functools.partial(client.ClientSession, auto_decompress=False)
    senders = serve.ASYNC_REQUEST_FUNCS
    senders[BACKEND] = bound_request(senders[BACKEND], limit)
    # They read all that `/metrics` says; engine_metrics.py reads it to a limit.
    serve.fetch_spec_decode_metrics = serve.fetch_diffusion_metrics = read_nothing


def bound_request(send: Send, limit: Any) -> Send:
    """Return the request function with limits; `limit` is aiohttp's, in seconds."""

    @functools.wraps(send)
    async def sent(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        most = BYTES_OF_AN_ANSWER + BYTES_OF_A_TOKEN * request_func_input.output_len
        found = await send(request_func_input, BoundedStreams(session, most, limit), pbar)
        if found.success and (wrong := find_wrong_count(found)) is not None:
            found.success, found.error = False, wrong
        if not found.success:
            # vLLM adds up the tokens that a failed request reports.
            found.output_tokens, found.prompt_len = 0, request_func_input.prompt_len
        return found

    return sent


def find_wrong_count(found: Any) -> str | None:
    """Describe a token count of the server that is not a number of tokens."""
    for what, count in (("answer", found.output_tokens), ("prompt", found.prompt_len)):
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            return f"the endpoint says that the {what} has {str(count)[:40]!a} tokens"
    return None


class BoundedStreams:
    """An aiohttp session that limits streamed answers."""

    def __init__(self, session: Any, most: int, limit: Any) -> None:
        self._session = session
        self._most = most
        self._limit = limit

    @asynccontextmanager
    async def post(
        self, url: str, *, json: Any, headers: dict[str, str]
    ) -> AsyncIterator[CountedResponse]:
        """Send one request; raises BadResponseError, as `post_bounded`."""
        asked = post_bounded(
            self._session, url, self._most, json=json, headers=headers, timeout=self._limit
        )
        async with asked as response:
            yield CountedResponse(response.response, response.most)


class CountedResponse(StreamedResponse):
    """Streamed answer whose usage is also in a part without choices.

    vLLM's client reads it only there. llama.cpp has it in the part of the last choice. Without it,
    the client would count the tokens of the text, which may be fewer or more than were written.
    """

    async def iter_any(self) -> AsyncIterator[bytes]:
        last = b""
        async for part in super().iter_any():
            last = (last + part)[-LAST_BYTES:]
            yield part
        if usage := usage_with_choices(last):
            yield b'data: {"choices": [], "usage": %b}\n\n' % json.dumps(usage).encode()


def usage_with_choices(stream: bytes) -> Any:
    """Return the usage in a stream's last part but `[DONE]`, or None if it has no choice."""
    for line in reversed(stream.splitlines()):
        if line.startswith(b"data: {"):
            try:
                part = parse_json(line.removeprefix(b"data: "), whole_text=False, finite=False)
            except ValueError:
                return None
            return part.get("usage") if part.get("choices") else None
    return None


async def read_nothing(*_: Any) -> None:
    """Replace a reader of counters."""

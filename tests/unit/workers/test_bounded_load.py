"""What an endpoint may answer vLLM's load generator; the client itself is in the serving one's."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm_stand_in import Serve

from pipeline.workers.bounded_load import BYTES_OF_A_TOKEN, BYTES_OF_AN_ANSWER, bound_load


@dataclass
class Found:
    """A request's outcome as vLLM has it."""

    success: bool = True
    error: str = ""
    output_tokens: Any = 3
    prompt_len: Any = 8


@dataclass
class Served:
    """A session of aiohttp's, with one answer without an end, and what it was asked."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reason: str | None = "because"
    parts: int = 10**9
    asked: dict[str, Any] = field(default_factory=dict)
    taken: int = 0

    @asynccontextmanager
    async def post(self, url: str, **settings: Any) -> AsyncIterator[Served]:
        self.asked = {"url": url, **settings}
        yield self

    @property
    def content(self) -> Served:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for _ in range(self.parts):
            self.taken += 1
            yield b"x" * 1000


def sent(session: Served, found: Found) -> Found:
    """What comes of one request by vLLM's own function, which catches every exception."""

    async def send(asked: Any, session: Any, pbar: Any = None) -> Found:
        try:
            async with session.post(url="http://e", json={"a": 1}, headers={"A": "b"}) as response:
                if response.status != 200:
                    return Found(False, response.reason)
                async for _ in response.content.iter_any():
                    pass
        except Exception as error:
            return Found(False, f"{error}")
        return found

    serve = Serve()
    serve.ASYNC_REQUEST_FUNCS = {"openai": send, "another": send}
    bound_load(serve)
    assert serve.ASYNC_REQUEST_FUNCS["another"] is send
    asked = argparse.Namespace(output_len=2, prompt_len=8)
    answer: Found = asyncio.run(serve.ASYNC_REQUEST_FUNCS["openai"](asked, session, pbar=None))
    return answer


def test_a_sound_answer_is_as_it_was() -> None:
    served = Served(parts=3)
    assert sent(served, Found()) == Found()
    assert served.asked["headers"] == {"A": "b", "Accept-Encoding": "identity"}
    assert served.asked["json"] == {"a": 1}
    assert served.asked["timeout"]["total"] > served.asked["timeout"]["sock_read"] > 0


def test_an_answer_without_an_end_is_read_to_its_limit() -> None:
    served = Served()
    found = sent(served, Found())
    assert not found.success
    assert "larger than" in found.error
    most = BYTES_OF_AN_ANSWER + 2 * BYTES_OF_A_TOKEN
    assert served.taken == most // 1000 + 1


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (Served(status=307, headers={"Location": "http://other"}), "redirects"),
        (Served(headers={"Content-Encoding": "gzip"}), "compressed"),
        (Served(status=500, reason="x" * 100_000), "xxx"),
        (Served(status=503, reason=None), "HTTP 503"),
    ],
    ids=["redirect", "packed", "error", "silent error"],
)
def test_what_is_not_read(served: Served, words: str) -> None:
    found = sent(served, Found())
    assert not found.success
    assert words in found.error
    assert len(found.error) < 3000
    assert served.asked["allow_redirects"] is False
    assert served.taken == 0


@pytest.mark.parametrize("count", [None, "3", 3.0, True, -1, 10**12, [3]], ids=str)
def test_a_count_that_is_none_is_a_failed_request(count: Any) -> None:
    """Else vLLM adds it up, and the worker ends."""
    for wrong in (Found(output_tokens=count), Found(prompt_len=count)):
        found = sent(Served(parts=1), wrong)
        assert not found.success
        assert (found.output_tokens, found.prompt_len) == (0, 8)


def test_the_engines_counters_are_read_elsewhere() -> None:
    serve = Serve()
    bound_load(serve)
    for reader in (serve.fetch_spec_decode_metrics, serve.fetch_diffusion_metrics):  # type: ignore[attr-defined]
        assert asyncio.run(reader("http://e", None)) is None
    assert serve.aiohttp.ClientSession.keywords == {"auto_decompress": False}

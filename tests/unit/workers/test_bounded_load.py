"""What an endpoint may answer vLLM's load generator; the client itself is in the serving one's."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pytest
from served_answer import ServedAnswer
from vllm_stand_in import Serve

from pipeline.workers.bounded_load import (
    BYTES_OF_A_TOKEN,
    BYTES_OF_AN_ANSWER,
    BoundedStreams,
    bound_load,
)

CHOICE = {"choices": [{"text": " a", "finish_reason": None}]}
USAGE = {"usage": {"completion_tokens": 8, "prompt_tokens": 16}}


@dataclass
class Found:
    """A request's outcome as vLLM has it."""

    success: bool = True
    error: str = ""
    output_tokens: Any = 3
    prompt_len: Any = 8


def served(parts: int = 10**9, **changes: Any) -> ServedAnswer:
    """An answer of so many parts of 1,000 bytes; without an end, as far as anyone reads."""
    return ServedAnswer(repeat(b"x" * 1000, parts), **changes)


def sent(session: ServedAnswer, found: Found) -> Found:
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
    answer = served(3)
    assert sent(answer, Found()) == Found()
    assert answer.asked["headers"] == {"A": "b", "Accept-Encoding": "identity"}
    assert answer.asked["json"] == {"a": 1}
    assert answer.asked["timeout"]["total"] > answer.asked["timeout"]["sock_read"] > 0


def test_an_answer_without_an_end_is_read_to_its_limit() -> None:
    answer = served()
    found = sent(answer, Found())
    assert not found.success
    assert "larger than" in found.error
    most = BYTES_OF_AN_ANSWER + 2 * BYTES_OF_A_TOKEN
    assert answer.taken == most // 1000 + 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (served(status=307, headers={"Location": "http://other"}), "redirects"),
        (served(headers={"Content-Encoding": "gzip"}), "compressed"),
        (served(status=500, reason="x" * 100_000), "xxx"),
        (served(status=503, reason=None), "HTTP 503"),
    ],
    ids=["redirect", "packed", "error", "silent error"],
)
def test_what_is_not_read(answer: ServedAnswer, words: str) -> None:
    found = sent(answer, Found())
    assert not found.success
    assert words in found.error
    assert len(found.error) < 3000
    assert answer.asked["allow_redirects"] is False
    assert answer.taken == 0


@pytest.mark.parametrize("count", [None, "3", 3.0, True, -1, 10**12, [3]], ids=str)
def test_a_count_that_is_none_is_a_failed_request(count: Any) -> None:
    """Else vLLM adds it up, and the worker ends."""
    for wrong in (Found(output_tokens=count), Found(prompt_len=count)):
        found = sent(served(1), wrong)
        assert not found.success
        assert (found.output_tokens, found.prompt_len) == (0, 8)


def test_the_engines_counters_are_read_elsewhere() -> None:
    serve = Serve()
    bound_load(serve)
    for reader in (serve.fetch_spec_decode_metrics, serve.fetch_diffusion_metrics):  # type: ignore[attr-defined]
        assert asyncio.run(reader("http://e", None)) is None
    assert serve.aiohttp.ClientSession.keywords == {"auto_decompress": False}


def streamed(*parts: dict[str, Any], cut: int = 7) -> list[dict[str, Any]]:
    """The parts that vLLM's client sees of an answer, which comes in pieces of `cut` bytes."""
    lines = [f"data: {json.dumps(part)}\n\n" for part in parts] + ["data: [DONE]\n\n"]
    whole = "".join(lines).encode()
    answer = ServedAnswer([whole[at : at + cut] for at in range(0, len(whole), cut)])

    async def read() -> bytes:
        session = BoundedStreams(answer, 10_000, None)
        async with session.post("http://e", json={}, headers={}) as response:
            return b"".join([part async for part in response.content.iter_any()])

    seen = asyncio.run(read()).decode().split("\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in seen if each.endswith("}")]


def test_the_usage_that_llamacpp_sends_with_a_choice_is_counted() -> None:
    """vLLM's client reads it in a part without choices only, else it counts the text's tokens."""
    last = {"choices": [{"text": "", "finish_reason": "length"}], **USAGE}
    assert streamed(CHOICE, last) == [CHOICE, last, {"choices": [], **USAGE}]


@pytest.mark.parametrize(
    "parts",
    [
        (CHOICE, {"choices": [], **USAGE}),
        ({**CHOICE, **USAGE}, {"choices": [], **USAGE}),
        ({**CHOICE, **USAGE}, CHOICE),
        (CHOICE, {"error": {"message": "x"}}),
        (),
    ],
    ids=["vLLM", "vLLM with usage in each", "not the last", "an error", "nothing"],
)
def test_no_other_answer_is_changed(parts: tuple[dict[str, Any], ...]) -> None:
    assert streamed(*parts) == list(parts)

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from eval_gates.speed.load_client import ClientClock, LoadClient, LoadTarget
from eval_gates.speed.load_prompts import Prompt, PromptSource
from eval_gates.speed.load_run import RequestColumns
from prepare.errors import ServingError

TARGET = LoadTarget("http://m", "model", None, {"prefix_cache_hits": "hits"})
CHOICE = {"choices": [{"text": " a"}]}


def stream(*parts: Any) -> list[bytes]:
    return [b"data: %b\n\n" % json.dumps(part).encode() for part in parts] + [b"data: [DONE]\n\n"]


def answer(tokens: Any = 2, asked: Any = 8) -> list[bytes]:
    return stream(CHOICE, CHOICE, {"usage": {"completion_tokens": tokens, "prompt_tokens": asked}})


@dataclass
class Response:
    chunks: list[bytes]
    session: Endpoint
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Response:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            await asyncio.sleep(self.session.pause)
            yield chunk


@dataclass
class Endpoint:
    answers: list[Any] = field(default_factory=list)
    pause: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @asynccontextmanager
    async def post(self, url: str, **settings: Any) -> AsyncIterator[Response]:
        self.asked.append({"url": url, **settings})
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        given = self.answers[len(self.asked) - 1] if self.answers else answer()
        changes = given if isinstance(given, dict) else {"chunks": given}
        yield Response(**{"chunks": [], "session": self, **changes})
        self.in_flight -= 1

    @asynccontextmanager
    async def get(self, url: str, **_: Any) -> AsyncIterator[Response]:
        yield Response([f"hits {len(self.asked)}\n".encode()], self)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    made, module = Endpoint(), ModuleType("aiohttp")
    module.ClientError, module.ClientTimeout = OSError, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiohttp", module)
    monkeypatch.setattr("eval_gates.speed.load_client.open_session", lambda _: made)
    return made


def prompts(number: int, **changes: Any) -> list[Prompt]:
    return [
        Prompt(**{"text": f"p{n}", "input_tokens": 8, "output_tokens": 2, **changes})
        for n in range(number)
    ]


def test_so_many_requests_are_in_flight_and_each_is_timed(endpoint: Endpoint) -> None:
    endpoint.pause = 0.01
    load = LoadClient(at_once=3, warmup_s=0.0).measure(TARGET, prompts(12))
    requests = RequestColumns(**load["requests"])
    assert (len(requests), endpoint.most) == (12, 3)
    assert requests.start_s == sorted(requests.start_s)
    assert set(requests.output_tokens) == {2}
    for start, ttft, end in zip(requests.start_s, requests.ttft_s, requests.end_s, strict=True):
        assert ttft is not None
        assert end is not None
        assert start + ttft + 0.009 <= end <= load["seconds"]
    # Counted is what follows the first wave.
    assert load["before"]["prefix_cache_hits"] >= 3
    assert load["after"] == {"prefix_cache_hits": 12}


def test_requests_are_sent_at_their_times_whatever_is_answered(endpoint: Endpoint) -> None:
    endpoint.pause = 0.1
    at = [0.0, 0.03, 0.06, 0.2]
    load = LoadClient(at_once=None, warmup_s=0.01).measure(TARGET, prompts(4), at)
    assert endpoint.most >= 3
    late = [start - due for start, due in zip(load["requests"]["start_s"], at, strict=True)]
    assert min(late) >= 0
    assert load["client_lag_s"] >= sorted(late)[2] - 0.001
    assert load["cpus"] == os.cpu_count()
    assert load["runnable"] >= 0


@pytest.mark.parametrize(("output", "ignores"), [("fixed", True), ("natural", False)])
def test_what_a_request_says(endpoint: Endpoint, output: str, ignores: bool) -> None:
    client = LoadClient(at_once=1, warmup_s=0.0, is_natural=output == "natural")
    client.measure(TARGET, prompts(1, overrides={"cache_salt": "7.0"}))
    (asked,) = endpoint.asked
    body = asked["json"]
    assert (asked["url"], asked["allow_redirects"]) == ("http://m/v1/completions", False)
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("p0", 2, 0)
    assert body.get("ignore_eos", False) is ignores
    assert body["cache_salt"] == "7.0"
    assert asked["headers"]["Accept-Encoding"] == "identity"


def test_a_key_of_the_endpoint_is_sent(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    LoadClient(at_once=1, warmup_s=0.0).measure(TARGET, prompts(1))
    assert endpoint.asked[0]["headers"]["Authorization"] == "Bearer k"


def failures(endpoint: Endpoint, given: Any, *, is_natural: bool = False) -> list[str | None]:
    endpoint.answers = [answer(), given]
    client = LoadClient(at_once=1, warmup_s=0.0, is_natural=is_natural)
    load = client.measure(TARGET, prompts(2))
    requests = RequestColumns(**load["requests"])  # also: no time and no token of a failed one
    return requests.error[1:]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"status": 307}, "redirects"),
        ({"status": 500}, "500"),
        ({"status": 429, "chunks": [b'{"error": "too fast"}']}, '429: {"error": "too fast'),
        ([b'{"error": {"message": "no provider"}}'], "no provider"),
        ({"headers": {"Content-Encoding": "gzip"}}, "compressed"),
        (answer(tokens=3), "3 tokens came"),
        (answer(tokens=1), "1 tokens came"),
        (answer(tokens="2"), "'2' tokens"),
        (answer(tokens=True), "'True' tokens"),
        (answer(asked=-1), "'-1' tokens"),
        (stream(CHOICE), "how many tokens"),
        (stream({"usage": {"completion_tokens": 2, "prompt_tokens": 8}}), "no token came"),
        (stream({"error": "out of memory"}), "out of memory"),
        ([b'data: {"error": "half \\ud800"}\n\n'], "half ?"),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], "too deep"),
        (stream([1]), "no object"),
        ([b"data: {nothing\n\n"], "Error"),
        ([b"x" * 100_000] * 2, "larger than"),
        ([], "no token came"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_answer_is_a_failed_request(endpoint: Endpoint, given: Any, words: str) -> None:
    (error,) = failures(endpoint, given)
    assert error is not None
    assert words in error
    assert len(error) <= 300


def test_an_endpoint_need_not_count_the_prompt(endpoint: Endpoint) -> None:
    assert failures(endpoint, stream(CHOICE, {"usage": {"completion_tokens": 2}})) == [None]


def test_a_part_may_say_that_it_has_no_error(endpoint: Endpoint) -> None:
    usage = {"completion_tokens": 2, "prompt_tokens": 8}
    parts = stream({**CHOICE, "error": None}, {"choices": [], "usage": usage, "error": None})
    assert failures(endpoint, parts) == [None]


def test_a_natural_answer_may_end_early_and_not_late(endpoint: Endpoint) -> None:
    assert failures(endpoint, answer(tokens=1), is_natural=True) == [None]
    endpoint.asked.clear()
    assert failures(endpoint, answer(tokens=3), is_natural=True) != [None]


def test_parts_may_come_cut_anywhere_and_with_the_usage_in_the_last_choice(
    endpoint: Endpoint,
) -> None:
    usage = {"completion_tokens": 2, "prompt_tokens": 8}
    whole = b": ping\n\n" + b"".join(stream(CHOICE, {**CHOICE, "usage": usage}))
    assert failures(endpoint, [whole[n : n + 7] for n in range(0, len(whole), 7)]) == [None]


def test_a_load_of_which_nothing_is_answered_says_why(endpoint: Endpoint) -> None:
    endpoint.answers = [{"status": 503}] * 2
    with pytest.raises(ServingError, match="503"):
        LoadClient(at_once=2, warmup_s=0.0).measure(TARGET, prompts(2))


def test_the_clock_notes_what_holds_the_client_up() -> None:
    async def work() -> dict[str, float]:
        import time

        async with ClientClock() as clock:
            await asyncio.sleep(0.05)
            time.sleep(0.2)
            await asyncio.sleep(0.05)
        return clock.facts()

    facts = asyncio.run(work())
    assert 0.1 < facts["client_late_s"] < 5
    assert asyncio.run(asyncio.wait_for(idle(), 5)).get("client_late_s", 0.0) < 0.1


async def idle() -> dict[str, float]:
    async with ClientClock() as clock:
        await asyncio.sleep(0.05)
    return clock.facts()


class TestPrompts:
    def test_a_files_prompts_come_in_an_order_of_the_loads_own_and_not_from_the_cache(
        self, tmp_path: Any
    ) -> None:
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": f"p {n}"}) + "\n" for n in range(4)))
        workload = {"kind": "requests", "file": str(file), "output_tokens": 3}

        def tokens(text: str) -> Any:
            found = ModuleType("tokens")
            found.input_ids = text.split()  # type: ignore[attr-defined]
            return found

        source = PromptSource(None, workload, tokens)
        first, second = source.draw(10, 1), source.draw(10, 2)
        assert source.draw(10, 1) == first
        assert [each.text for each in first] != [each.text for each in second]
        assert sorted(each.text for each in first[:4]) == [f"p {n}" for n in range(4)]
        salts = [each.overrides["cache_salt"] for each in first]
        assert salts == ["1.0"] * 4 + ["1.1"] * 4 + ["1.2"] * 2
        assert {each.input_tokens for each in first} == {2}

"""What an endpoint may answer lm-eval's client; aiohttp itself is in the evaluating environment."""

from __future__ import annotations

import asyncio
import math

import pytest
from served_answer import ServedAnswer

from eval_gates.suites.bounded_session import BadResponseError, BoundedSession, BufferedResponse


def answered(served: ServedAnswer, most: int = 1000) -> BufferedResponse:
    async def ask() -> BufferedResponse:
        session = BoundedSession(served, most)
        async with session.post("http://e/v1", json={"a": 1}, headers={"A": "key"}) as answer:
            return answer

    return asyncio.run(ask())


def test_an_answer_as_lm_eval_reads_it() -> None:
    served = ServedAnswer([b'{"a": ', b"NaN}"])
    answer = answered(served)
    answer.raise_for_status()
    assert answer.ok
    assert math.isnan(asyncio.run(answer.json())["a"])
    assert served.asked["json"] == {"a": 1}
    assert served.asked["headers"] == {"A": "key", "Accept-Encoding": "identity"}


def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    served = ServedAnswer([b"x" * 100] * 1000)
    with pytest.raises(BadResponseError, match="1,000"):
        answered(served)
    assert served.taken == 11


def test_the_questions_go_to_no_other_host() -> None:
    served = ServedAnswer([b"{}"], status=307, headers={"Location": "http://other"})
    with pytest.raises(BadResponseError, match="307"):
        answered(served)
    assert served.asked["allow_redirects"] is False


def test_what_nobody_asked_to_be_packed_is_not_unpacked() -> None:
    served = ServedAnswer([b"x"], headers={"Content-Encoding": "gzip"})
    with pytest.raises(BadResponseError, match="gzip"):
        answered(served)
    assert served.taken == 0


@pytest.mark.parametrize(
    "body", [b"", b"nothing", b"[" * 100_000, b'{"a": 1, "a": 2}', b"\xff"], ids=range(5)
)
def test_no_json(body: bytes) -> None:
    with pytest.raises(BadResponseError, match="did not answer JSON"):
        asyncio.run(answered(ServedAnswer([body]), 10**6).json())


def test_an_error_says_its_beginning() -> None:
    answer = answered(ServedAnswer([b"x" * 9000], status=500), 10_000)
    with pytest.raises(BadResponseError, match="500") as caught:
        answer.raise_for_status()
    assert len(str(caught.value)) < 2100
    assert asyncio.run(answer.text()) == "x" * 2000

"""An HTTP session as lm-eval's models use it, whose answers have an end.

lm-eval reads what a server sends, all of it, and follows it to other hosts. An endpoint may be
somebody else's: an answer without an end, gigabytes packed into megabytes, a redirect that would
hand the questions on. Here these are errors of that request, as any other is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.core.foreign.file import MEBIBYTE
from pipeline.core.foreign.json import parse_json

# The log-probabilities of a prompt of 100,000 tokens are 10 MB.
MAX_BYTES = 16 * MEBIBYTE
LONGEST_TEXT = 2000  # letters of an answer that is an error


class AnswerError(Exception):
    """A server's answer that is not used; says why, without the request and its headers."""


@dataclass(frozen=True)
class Answered:
    """A server's answer, whole; with what lm-eval asks of aiohttp's."""

    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether it is no error."""
        return self.status < 400

    def raise_for_status(self) -> None:
        """Raise AnswerError where it is an error."""
        if not self.ok:
            raise AnswerError(f"the endpoint answered {self.status}: {self._said}")

    async def text(self) -> str:
        """Its beginning, for messages."""
        return self._said

    async def json(self) -> Any:
        """Its JSON, in which a broken model's numbers may be NaN; AnswerError where it is none."""
        try:
            return parse_json(self.content, whole_text=False, finite=False)
        except ValueError as error:
            raise AnswerError(f"the endpoint did not answer JSON: {error}") from error

    @property
    def _said(self) -> str:
        return self.content[:LONGEST_TEXT].decode(errors="replace")


class BoundedSession:
    """Posts as an aiohttp session does.

    Args:
        session: of aiohttp, which bounds the seconds of a request.
        most: bytes that an answer may have.
    """

    def __init__(self, session: Any, most: int = MAX_BYTES) -> None:
        self._session = session
        self._most = most

    @asynccontextmanager
    async def post(
        self, url: str, *, json: Any, headers: dict[str, str]
    ) -> AsyncIterator[Answered]:
        """One request and its whole answer.

        Raises:
            AnswerError: it redirects, or is compressed, or too large.
        """
        plain = {**headers, "Accept-Encoding": "identity"}
        asked = self._session.post(url, json=json, headers=plain, allow_redirects=False)
        async with asked as response:
            yield Answered(response.status, await self._content(response))

    async def _content(self, response: Any) -> bytes:
        if 300 <= response.status < 400:
            raise AnswerError(
                f"the endpoint answered {response.status}: redirects are not followed"
            )
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise AnswerError(f"the endpoint's answer is compressed ({encoding[:20]!a})")
        content = bytearray()
        async for part in response.content.iter_any():
            content += part
            if len(content) > self._most:
                raise AnswerError(f"the endpoint's answer is larger than {self._most:,} bytes")
        return bytes(content)

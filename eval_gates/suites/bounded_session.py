"""HTTP sessions as lm-eval's models and vLLM's load generator use them, whose answers have an end.

These read what a server sends, all of it, and follow it to other hosts. An endpoint may be somebody
else's: an answer without an end, gigabytes packed into megabytes, a redirect that would hand the
questions on. Here these are errors of that request, as any other is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.json import parse_json

# The log-probabilities of a prompt of 100,000 tokens are 10 MB.
MAX_BYTES = 16 * MEBIBYTE
LONGEST_TEXT = 2000  # letters of an answer that is an error


class BadResponseError(Exception):
    """A server's answer that is not used; says why, without the request and its headers."""


@dataclass(frozen=True)
class BufferedResponse:
    """A server's answer, whole; with what lm-eval asks of aiohttp's."""

    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether it is no error."""
        return self.status < 400

    def raise_for_status(self) -> None:
        """Raise BadResponseError where it is an error."""
        if not self.ok:
            raise BadResponseError(f"the endpoint answered {self.status}: {self._said}")

    async def text(self) -> str:
        """Its beginning, for messages."""
        return self._said

    async def json(self) -> Any:
        """Return its JSON, which may hold NaN; raise BadResponseError if it is no JSON."""
        try:
            return parse_json(self.content, whole_text=False, finite=False)
        except ValueError as error:
            raise BadResponseError(f"the endpoint did not answer JSON: {error}") from error

    @property
    def _said(self) -> str:
        return self.content[:LONGEST_TEXT].decode(errors="replace")


@asynccontextmanager
async def post_bounded(
    session: Any, url: str, most: int, *, headers: dict[str, str], **asked: Any
) -> AsyncIterator[StreamedResponse]:
    """One request, and its answer as it comes.

    Args:
        session: of aiohttp, which bounds the seconds of a request.
        url: that is asked.
        most: bytes that the answer may have.
        headers: of the request.
        asked: what else the session's `post` takes.

    Raises:
        BadResponseError: it redirects, or is compressed.
    """
    plain = {**headers, "Accept-Encoding": "identity"}
    async with session.post(url, headers=plain, allow_redirects=False, **asked) as response:
        if 300 <= response.status < 400:
            raise BadResponseError(
                f"the endpoint answered {response.status}: redirects are not followed"
            )
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise BadResponseError(f"the endpoint's answer is compressed ({encoding[:20]!a})")
        yield StreamedResponse(response, most)


@dataclass(frozen=True)
class StreamedResponse:
    """A server's answer as it comes; with what vLLM's load generator asks of aiohttp's."""

    response: Any
    most: int

    @property
    def status(self) -> int:
        """Of HTTP."""
        return int(self.response.status)

    @property
    def reason(self) -> str:
        """The words beside the status."""
        return str(self.response.reason or f"HTTP {self.status}")[:LONGEST_TEXT]

    @property
    def content(self) -> StreamedResponse:
        """Itself: what is read from."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Its parts; raises BadResponseError where they are too many bytes."""
        came = 0
        async for part in self.response.content.iter_any():
            came += len(part)
            if came > self.most:
                raise BadResponseError(f"the endpoint's answer is larger than {self.most:,} bytes")
            yield part


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
    ) -> AsyncIterator[BufferedResponse]:
        """One request and its whole answer.

        Raises:
            BadResponseError: it redirects, or is compressed, or too large.
        """
        asked = post_bounded(self._session, url, self._most, json=json, headers=headers)
        async with asked as response:
            content = bytearray()
            async for part in response.iter_any():
                content += part
            yield BufferedResponse(response.status, bytes(content))

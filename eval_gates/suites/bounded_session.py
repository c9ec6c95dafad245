"""HTTP sessions with limits, for lm-eval's models and vLLM's load generator.

They reject endless or compressed answers, and redirects, which those libraries accept.
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
MAX_REASON_BYTES = 2000  # of an error answer


class BadResponseError(Exception):
    """Rejected answer; the message omits the request and its headers."""


@dataclass(frozen=True)
class BufferedResponse:
    """Complete answer, with the part of aiohttp's interface that lm-eval uses."""

    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400

    def raise_for_status(self) -> None:
        if not self.ok:
            raise BadResponseError(f"the endpoint answered {self.status}: {self._said}")

    async def text(self) -> str:
        return self._said

    async def json(self) -> Any:
        try:
            return parse_json(self.content, whole_text=False, finite=False)
        except ValueError as error:
            raise BadResponseError(f"the endpoint did not answer JSON: {error}") from error

    @property
    def _said(self) -> str:
        return self.content[:MAX_REASON_BYTES].decode(errors="replace")


@asynccontextmanager
async def post_bounded(
    session: Any, url: str, most: int, *, headers: dict[str, str], **asked: Any
) -> AsyncIterator[StreamedResponse]:
    """Send one request and yield its streamed answer of at most `most` bytes."""
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
    """Streamed answer, with the part of aiohttp's interface that vLLM uses."""

    response: Any
    most: int

    @property
    def status(self) -> int:
        return int(self.response.status)

    @property
    def reason(self) -> str:
        return str(self.response.reason or f"HTTP {self.status}")[:MAX_REASON_BYTES]

    @property
    def content(self) -> StreamedResponse:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        came = 0
        async for part in self.response.content.iter_any():
            came += len(part)
            if came > self.most:
                raise BadResponseError(f"the endpoint's answer is larger than {self.most:,} bytes")
            yield part


class BoundedSession:
    """Session that posts as an aiohttp session does, with at most `most` bytes per answer."""

    def __init__(self, session: Any, most: int = MAX_BYTES) -> None:
        self._session = session
        self._most = most

    @asynccontextmanager
    async def post(
        self, url: str, *, json: Any, headers: dict[str, str]
    ) -> AsyncIterator[BufferedResponse]:
        """Send one request and yield its complete answer, or raise BadResponseError."""
        asked = post_bounded(self._session, url, self._most, json=json, headers=headers)
        async with asked as response:
            content = bytearray()
            async for part in response.iter_any():
                content += part
            yield BufferedResponse(response.status, bytes(content))

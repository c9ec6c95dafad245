"""Asks a foreign HTTP server, and bounds what comes back: bytes, and seconds in all.

An HTTP library's timeout is for one read, so a server that sends a byte a minute holds its client
for years; and 10 MB of gzip are 10 GB of text. Here the time is that of the whole exchange,
headers too, and a compressed answer, which nobody asked for, is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.core.credentials import restore_credentials
from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.json import parse_json

MAX_BYTES = 16 * MEBIBYTE


@dataclass(frozen=True)
class HttpResponse:
    """What a server answered."""

    status: int
    content: bytes

    @property
    def text(self) -> str:
        """For messages."""
        return self.content[:2000].decode(errors="replace")

    def json(self) -> Any:
        """Its JSON, in which a broken model's numbers may be NaN; ValueError where it is none."""
        return parse_json(self.content, whole_text=False, finite=False)


def send_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    json: Any = None,
    headers: dict[str, str] | None = None,
    socket: Path | None = None,
    trust_env: bool = True,
    max_bytes: int = MAX_BYTES,
) -> HttpResponse:
    """Ask, once.

    Args:
        url: whole, its credentials hidden where it had some.
        seconds: of the exchange, from connecting to the last byte.
        socket: a Unix socket to go through.
        trust_env: go through the proxy that the environment names.
        limit: the most bytes that the answer's body may have.

    Raises:
        httpx.HTTPError: there is no whole answer, within that time and of that size.
        httpx.InvalidURL: the URL is none.
    """

    address = restore_credentials(url)
    sent = {**(headers or {}), "Accept-Encoding": "identity"}

    async def exchange() -> HttpResponse:
        transport = httpx.AsyncHTTPTransport(uds=str(socket)) if socket else None
        async with (
            httpx.AsyncClient(
                timeout=timeout_s, trust_env=trust_env, transport=transport
            ) as client,
            client.stream(method, address, json=json, headers=sent) as response,
        ):
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise httpx.DecodingError(f"the answer is compressed ({encoding[:20]})")
            parts, size = [], 0
            async for part in response.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > max_bytes:
                    raise httpx.ReadError(f"the answer is larger than {max_bytes:,} bytes")
            return HttpResponse(response.status_code, b"".join(parts))

    try:
        return asyncio.run(asyncio.wait_for(exchange(), timeout_s))
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no complete answer within {timeout_s:g} s") from error

"""HTTP requests to untrusted servers, bounded in bytes and in total time.

A library's timeout applies to one read. Compressed responses are rejected: 10 MB of gzip can expand
to 10 GB.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from pipeline.core.credentials import restore_credentials
from pipeline.core.untrusted import MEBIBYTE

MAX_BYTES = 16 * MEBIBYTE


@dataclass(frozen=True)
class HttpResponse:
    """Status and body of a response."""

    status: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content[:2000].decode(errors="replace")


def send_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    json: Any = None,
    headers: dict[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> HttpResponse:
    """Send one request without proxy or retries, in `timeout_s` altogether.

    httpx.HTTPError: no complete response within the limits. httpx.InvalidURL: the URL is invalid.
    """
    address = restore_credentials(url)
    sent = {**(headers or {}), "Accept-Encoding": "identity"}

    async def exchange() -> HttpResponse:
        transport = httpx.AsyncHTTPTransport()  # which reads SSL_CERT_FILE, and no proxies
        async with (
            httpx.AsyncClient(timeout=timeout_s, trust_env=False, transport=transport) as client,
            client.stream(method, address, json=json, headers=sent) as response,
        ):
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise httpx.DecodingError(f"the response is compressed ({encoding[:20]})")
            parts, size = [], 0
            async for part in response.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > max_bytes:
                    raise httpx.ReadError(f"the response is larger than {max_bytes:,} bytes")
            return HttpResponse(response.status_code, b"".join(parts))

    try:
        return asyncio.run(asyncio.wait_for(exchange(), timeout_s))
    except httpx.NetworkError as error:
        if str(error):
            raise
        raise httpx.NetworkError("the connection broke") from error
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no complete response within {timeout_s:g} s") from error

"""An engine's counters, read over HTTP to a limit, and what speculative decoding did."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from prepare.record import Record

ANSWER_SECONDS = 10.0
MAX_BYTES = 16 * 2**20
MAX_COUNT = 2**53
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+([-+.\deE]+)")


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class SpecDecodeStats(Record):
    """Differences of the engine's counters."""

    drafts: Count = Field(description="steps of a request in which tokens were drafted")
    draft_tokens: Count = Field(description="tokens drafted in them")
    accepted_tokens: Count = Field(description="of these, accepted")

    @model_validator(mode="after")
    def _no_more_than_were_drafted(self) -> SpecDecodeStats:
        if self.accepted_tokens > self.draft_tokens:
            raise ValueError("more tokens were accepted than drafted")
        return self

    @property
    def words(self) -> str:
        """The accepted share, and the tokens of a step with drafts, with the model's own."""
        if not self.draft_tokens or not self.drafts:
            return "nothing was drafted"
        return (
            f"{100 * self.accepted_tokens / self.draft_tokens:.0f} % of {self.draft_tokens:,} "
            f"drafted tokens accepted, {1 + self.accepted_tokens / self.drafts:.2f} tokens a step"
        )


def counters_in(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """Return values of Prometheus' text format, summed over labels.

    ValueError if one is no count.
    """
    ours = {theirs: name for name, theirs in names.items()}
    counters: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1] in ours:
            name = ours[match[1]]
            counters[name] = counters.get(name, 0.0) + float(match[2])
    if not all(0 <= value <= MAX_COUNT for value in counters.values()):
        raise ValueError("a counter is negative, or beyond counting")
    return {name: round(value) for name, value in counters.items()}


def counts_between(
    before: Mapping[str, int | None] | None, after: Mapping[str, int | None] | None
) -> dict[str, int] | None:
    """Return the differences by name; None without counters or after a restart."""
    if before is None or after is None:
        return None
    counts = {}
    for name in SpecDecodeStats.model_fields:
        # An unused counter may be missing before.
        then = before.get(name) or 0
        now = after.get(name)
        if now is None or now < then:
            return None
        counts[name] = now - then
    return counts if counts["accepted_tokens"] <= counts["draft_tokens"] else None


class SpecDecodeCounter:
    """Counters of an endpoint's speculative decoding from now on."""

    def __init__(self, url: str, names: Mapping[str, str], socket: str | None = None) -> None:
        self._url = url
        self._names = names
        self._socket = socket
        self._before = asyncio.run(self._look())

    def facts(self) -> dict[str, Any]:
        """Return drafted and accepted tokens since then, if known."""
        counts = counts_between(self._before, asyncio.run(self._look()))
        return {} if counts is None else {"spec_decode": counts}

    async def _look(self) -> dict[str, int] | None:
        if not self._names:
            return None
        async with open_session(self._socket) as session:
            return await read_counters(session, self._url, self._names)


def open_session(socket: str | None) -> Any:
    """Return a client session to that Unix socket, if any."""
    import aiohttp

    connector: Any = aiohttp.TCPConnector(limit=0)
    if socket is not None:
        connector = aiohttp.UnixConnector(socket, limit=0)
    return aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False)


async def read_counters(session: Any, url: str, names: Mapping[str, str]) -> dict[str, int] | None:
    """Return an endpoint's readable counters, if any; `names` as in :func:`counters_in`."""
    import aiohttp

    limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    plain = {"Accept-Encoding": "identity"}  # what is packed has no bound until it is unpacked
    try:
        async with session.get(
            f"{url}/metrics", headers=plain, timeout=limit, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    return None
            return counters_in(body.decode(), names) or None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None

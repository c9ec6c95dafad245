"""A session of aiohttp's as far as bounded clients use it: aiohttp is in workers' environments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ServedAnswer:
    """The session and its one answer, with what it was asked and how many parts were taken."""

    parts: Iterable[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reason: str | None = "because"
    asked: dict[str, Any] = field(default_factory=dict)
    taken: int = 0

    @asynccontextmanager
    async def post(self, url: str, **settings: Any) -> AsyncIterator[ServedAnswer]:
        self.asked = {"url": url, **settings}
        yield self

    @property
    def content(self) -> ServedAnswer:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            self.taken += 1
            yield part

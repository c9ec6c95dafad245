"""A bound of the tokens that an endpoint has under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TokenBudget:
    """A bound of the tokens that are under way together; 0: none."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def take(self, tokens: int) -> AsyncIterator[None]:
        """Wait until so many tokens fit, or nothing else is under way."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(tokens))
            self._taken += tokens
        try:
            yield
        finally:
            async with self._changed:
                self._taken -= tokens
                self._changed.notify_all()

    def _has_room(self, tokens: int) -> bool:
        return not self._limit or not self._taken or self._taken + tokens <= self._limit

"""Differences of an engine's speculative decoding counters; standard library only."""

from __future__ import annotations

from collections.abc import Mapping

# As the engines' counters call them.
NAMES = ("drafts", "draft_tokens", "accepted_tokens")


def counts_between(
    before: Mapping[str, int | None] | None, after: Mapping[str, int | None] | None
) -> dict[str, int] | None:
    """Return the differences by name; None without counters or after a restart."""
    if before is None or after is None:
        return None
    found = {}
    for name in NAMES:
        # An unused counter may be missing before.
        then, now = before.get(name) or 0, after.get(name)
        if now is None or now < then:
            return None
        found[name] = now - then
    return found if found["accepted_tokens"] <= found["draft_tokens"] else None

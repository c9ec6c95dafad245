"""Hints for names that are nearly right."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return "did you mean 'fp8-dynamic'? " for a beginning or a typo of a name, or ''."""
    begun = [each for each in known if name and each.startswith(name)]
    close = begun or get_close_matches(name, known, n=1)
    return f"did you mean {' or '.join(map(repr, close[:3]))}? " if close else ""

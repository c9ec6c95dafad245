"""How numbers of a verdict are written, the same on the card, the report's page, in CI and here."""

from __future__ import annotations


def format_points(fraction: float, places: int = 2) -> str:
    """A difference of two scores from 0 to 1, in points of 100 with its sign."""
    return f"{100 * fraction:+.{places}f}"


def format_percent(fraction: float | None, places: int = 2, *, nothing: str = "-") -> str:
    """A score or a share; `nothing` for None."""
    return nothing if fraction is None else f"{100 * fraction:.{places}f} %"


def format_megabytes(size: int | None, *, nothing: str = "-") -> str:
    """Bytes in MB (10^6); `nothing` for None and for 0."""
    return f"{size / 1e6:,.1f} MB" if size else nothing

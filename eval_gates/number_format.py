"""Formats of a verdict's numbers."""

from __future__ import annotations


def format_points(fraction: float, places: int = 2) -> str:
    """Format a difference of scores from 0 to 1 as signed percentage points."""
    return f"{100 * fraction:+.{places}f}"


def format_percent(fraction: float | None, places: int = 2, *, nothing: str = "-") -> str:
    """Format a score or a share; `nothing` for None."""
    return nothing if fraction is None else f"{100 * fraction:.{places}f} %"


def format_megabytes(size: int | None, *, nothing: str = "-") -> str:
    """Format bytes in MB (10^6); `nothing` for None and for 0."""
    return f"{size / 1e6:,.1f} MB" if size else nothing

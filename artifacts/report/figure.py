"""A figure of the report: plotly's data, with a description and a table.

`data` and `layout` are plain data in plotly's format (https://plotly.com/javascript/reference/), so
writing them needs no plotly. A colour is a CSS variable of the theme, such as `var(--ink)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.untrusted.text import html_text

SERIES = 6
"""Colours that the page has for series; more series begin again, with another symbol."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


@dataclass(frozen=True)
class Table:
    """A plain table."""

    columns: tuple[str, ...]  # headings
    rows: list[tuple[str, ...]]  # cells; the first of each names the row
    # columns of words; the others are numbers, and stand to the right
    text: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """One plot."""

    name: str  # unique in the page; of letters, digits and hyphens
    title: str  # above it
    says: str  # what there is to see, for those who cannot see it
    data: list[dict[str, Any]]  # plotly's traces
    layout: dict[str, Any]  # plotly's layout, as far as it is not the page's
    table: Table  # the same figures
    notes: tuple[str, ...] = ()  # sentences below it
    height: int = 320  # in CSS pixels

    @property
    def drawn(self) -> dict[str, Any]:
        drawn = {"data": self.data, "layout": {**self.layout, "height": self.height}}
        return dict(make_json_ready(drawn))


@dataclass
class UniqueIds:
    """Generator of unique names in one page."""

    used: set[str] = field(default_factory=set)

    def of(self, *words: str) -> str:
        letters = "".join(c if c.isalnum() and c.isascii() else "-" for c in "-".join(words))
        name, number = f"figure-{letters}".lower(), 1
        while name in self.used:
            number += 1
            name = f"figure-{letters}-{number}".lower()
        self.used.add(name)
        return name


def label(text: str) -> str:
    """Escape text, because plotly interprets tags such as `<a href>` in labels."""
    return html_text(text)


def colour(number: int) -> str:
    """Return the colour of a series."""
    return f"var(--series-{number % SERIES + 1})"


def symbol(number: int) -> str:
    """Return a series' marker, which distinguishes it without colour."""
    return _SYMBOLS[number % len(_SYMBOLS)]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title."""
    return {"title": {"text": label(title)}, **more}


def make_json_ready(value: Any) -> Any:
    """Replace numbers that JSON lacks by None, because one invalidates all figures."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: make_json_ready(each) for key, each in value.items()}
    return [make_json_ready(each) for each in value] if isinstance(value, list) else value

"""A figure of the report: what plotly draws, and the same in words and as a table.

`data` and `layout` are plotly's own (https://plotly.com/javascript/reference/), as plain data, so
that writing them needs no plotly. A colour is named as a CSS variable, `var(--ink)`: the page puts
in what the theme says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.untrusted.text import html_text

SERIES = 6
"""Colours that the page has for series; more series begin again, with another symbol."""
ALL_AT_ONE_X = {"hovermode": "x", "hoverdistance": -1}
"""Layout of a figure in which hovering anywhere shows all series' values at the nearest x."""
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
        """What the page's script is given."""
        drawn = {"data": self.data, "layout": {**self.layout, "height": self.height}}
        return dict(make_json_ready(drawn))


@dataclass
class UniqueIds:
    """Hands out names that are unique in one page."""

    used: set[str] = field(default_factory=set)

    def of(self, *words: str) -> str:
        """A name made of these words."""
        letters = "".join(c if c.isalnum() and c.isascii() else "-" for c in "-".join(words))
        name, number = f"figure-{letters}".lower(), 1
        while name in self.used:
            number += 1
            name = f"figure-{letters}-{number}".lower()
        self.used.add(name)
        return name


def label(text: str) -> str:
    """Text that plotly shows as it is: it reads tags such as `<a href>` in labels otherwise."""
    return html_text(text)


def colour(number: int) -> str:
    """The colour of a series."""
    return f"var(--series-{number % SERIES + 1})"


def symbol(number: int) -> str:
    """The marker of a series, so that colour is not all that distinguishes it."""
    return _SYMBOLS[number % len(_SYMBOLS)]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": label(title)}, **more}


def make_json_ready(value: Any) -> Any:
    """The value with None for numbers that JSON has no word for: one would void all figures."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: make_json_ready(each) for key, each in value.items()}
    return [make_json_ready(each) for each in value] if isinstance(value, list) else value

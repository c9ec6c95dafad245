"""docs/recipes.md names every recipe that there is, and how many there are."""

from __future__ import annotations

from pathlib import Path

from recipes.catalog import recipe_names

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
NUMBERS = {10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen"}


def test_every_recipe_has_its_row() -> None:
    text = PAGE.read_text()
    table = text.partition("| recipe | makes |")[2].partition("\n\n")[0]
    rows = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert rows == set(recipe_names())
    assert f"| {NUMBERS[len(rows)]}, see [below](#recipes)" in text

"""Ladders: recipes that are tried in order until one passes."""

from __future__ import annotations

from pydantic import Field, field_validator

from recipes.config_model import ConfigModel, Name


class FallbackChain(ConfigModel):
    """Recipes in order of preference; the first that passes is used."""

    name: Name
    summary: str = Field(description="one line for `prepare recipes list`")
    recipes: list[str] = Field(
        min_length=2, max_length=100, description="recipe names or YAML files, in order"
    )

    @field_validator("recipes")
    @classmethod
    def _recipes_differ(cls, recipes: list[str]) -> list[str]:
        for recipe in recipes:
            if recipes.count(recipe) > 1:
                raise ValueError(f"'{recipe}' occurs twice")
        return recipes

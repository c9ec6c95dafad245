"""`prepare recipes`: the available quantizations."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import JsonOption, argument
from pipeline.cli.tables import print_json, print_table

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Recipes: how variants are made."
)


@app.command("list")
def list_recipes(as_json: JsonOption = False) -> None:
    """List the recipes that the package carries.

    Example

      prepare recipes list --json
    """
    from recipes import catalog

    found = [catalog.load_recipe(name) for name in catalog.recipe_names()]
    if as_json:
        print_json([each.model_dump(exclude_none=True) for each in found])
        return
    rows = [[r.name, r.family, r.summary] for r in found]
    print_table(["recipe", "family", "what it does"], rows)


@app.command("show")
def show(
    name: Annotated[str, argument("Name or YAML file of a recipe or profile.")],
    as_json: JsonOption = False,
) -> None:
    """Show a recipe or a profile, with all its defaults filled in.

    Example

      prepare recipes show awq-w4a16 > my-recipe.yaml
    """
    import yaml

    from recipes import catalog

    recipe = catalog.load_shown(name).model_dump(exclude_none=True)
    if as_json:
        print_json(recipe)
    else:
        print(yaml.safe_dump(recipe, sort_keys=False), end="")

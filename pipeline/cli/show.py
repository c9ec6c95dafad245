"""`prepare show`: recipes, profiles and policies, with all their defaults filled in."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import JsonOption
from pipeline.cli.tables import print_json, print_table


def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name or YAML file of a recipe, profile or policy."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a recipe, profile or policy with all its defaults; without a name, list them.

    Examples

      prepare show

      prepare show awq-w4a16 > my-recipe.yaml

      prepare show default > my-policy.yaml
    """
    if name is None:
        _list_all(as_json=as_json)
        return
    import yaml

    from recipes import catalog
    from recipes.policy import Policy

    found = catalog.load_shown(name)
    if as_json:
        print_json(found.model_dump(exclude_none=True))
        return
    keys = found.file_keys() if isinstance(found, Policy) else found.model_dump(exclude_none=True)
    print(yaml.safe_dump(keys, sort_keys=False), end="")


def _list_all(*, as_json: bool) -> None:
    from recipes import catalog

    recipes = [catalog.load_recipe(each) for each in catalog.recipe_names()]
    profiles = [catalog.load_profile(each) for each in catalog.profile_names()]
    policies = [catalog.load_policy(each) for each in catalog.policy_names()]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "recipes": [each.model_dump(exclude_none=True) for each in recipes],
                "profiles": [each.model_dump(exclude_none=True) for each in profiles],
                "policies": [each.model_dump(exclude_none=True) for each in policies],
            }
        )
        return
    print_table(
        ["recipe", "family", "what it does"], [[r.name, r.family, r.summary] for r in recipes]
    )
    print_table(["profile", "how it serves"], [[p.name, p.summary] for p in profiles])
    print_table(
        ["policy", "alpha", "suites", "what it asks"],
        [[p.name, f"{p.alpha:g}", ", ".join(p.suites), p.summary] for p in policies],
    )

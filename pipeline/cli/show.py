"""`prepare show`: recipes, profiles and policies with all defaults; a suite's first prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import EvalDataOption, JsonOption, PolicyOption
from pipeline.cli.tables import print_json, print_table


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name or YAML file of a recipe, profile or policy; or the name of a suite.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a checkpoint: print the exact prompt of a suite's first question."
        ),
    ] = None,
    policy: PolicyOption = None,
    eval_data: EvalDataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a recipe, profile or policy with all its defaults; without a name, list them.

    With --checkpoint, NAME is a suite of the policy.

    Examples

      prepare show

      prepare show awq-w4a16 > my-recipe.yaml

      prepare show default > my-policy.yaml

      prepare show mmlu --checkpoint ./my-checkpoint

    Exit codes: 0 shown, 1 error, 2 usage.
    """
    if checkpoint is not None and name is not None:
        _show_prompt(name, checkpoint, policy, eval_data, as_json=as_json)
        return
    if name is None:
        _list_all(as_json=as_json)
        return
    import yaml

    from recipes import catalog
    from recipes.policy import Policy

    shown = catalog.load_shown(name)
    if as_json:
        print_json(shown.model_dump(exclude_none=True))
        return
    keys = (
        shown.file_keys()
        if isinstance(shown, Policy)
        else shown.model_dump(mode="json", exclude_none=True)
    )
    print(yaml.safe_dump(keys, sort_keys=False), end="")


def _show_prompt(
    name: str, checkpoint: Path, policy: str | None, eval_data: Path | None, *, as_json: bool
) -> None:
    from pipeline.cli.display import open_display
    from pipeline.preflight.first_prompt import first_prompt
    from recipes import catalog

    with open_display() as display:
        prompt = first_prompt(
            catalog.load_policy(policy or "default"), name, checkpoint, eval_data, display
        )
    if as_json:
        print_json(prompt)
        return
    print(prompt["prompt"])
    for choice in prompt["choices"]:
        print(f"choice: {choice!r}")


def _list_all(*, as_json: bool) -> None:
    from recipes import catalog

    recipes = [catalog.load_recipe(item) for item in catalog.recipe_names()]
    profiles = [catalog.load_profile(item) for item in catalog.profile_names()]
    policies = [catalog.load_policy(item) for item in catalog.policy_names()]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "recipes": [item.model_dump(mode="json", exclude_none=True) for item in recipes],
                "profiles": [item.model_dump(mode="json", exclude_none=True) for item in profiles],
                "policies": [item.model_dump(mode="json", exclude_none=True) for item in policies],
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

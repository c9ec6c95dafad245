"""Recipes that give bytes back, once the weights are here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from pipeline.plan.choice import Choice
from prepare.events import Progress
from prepare.private_files import write_atomically
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.rungs import GivenBack, give_back
from recipes.schema import Recipe

FOLDER = "recipes"  # of a run


def with_rungs(choices: Choice, source: Checkpoint, progress: Progress) -> Choice:
    """Return the options with each rung's modules chosen; as they are while weights are elsewhere.

    `source` has 16-bit weights. UsageError: as `give_back`.
    """
    is_here = source.here is not None and source.weights and source.format is None
    if not is_here:
        return choices
    assert source.here is not None
    chosen: dict[str, tuple[Recipe, GivenBack]] = {}  # pairs with KV caches share their weights
    given_back = dict(choices.given_back)
    recipes = []
    for recipe in choices.recipes:
        rung = choices.rungs.get(recipe.name)
        if rung is None or rung.percent is None:
            recipes.append(recipe)
            continue
        weights_name = choices.weights_name(recipe.name)
        if weights_name not in chosen:
            chosen[weights_name] = give_back(
                *(recipe, source.here, source.tensors, source.config),
                *(rung.percent, choices.profile.gives_back, progress),
            )
        made, given_back[recipe.name] = chosen[weights_name]
        recipes.append(made.model_copy(update={"name": recipe.name}))
    return replace(choices, recipes=tuple(recipes), rungs={}, given_back=given_back)


def write_rungs(choices: Choice, run_folder: Path) -> None:
    """Write each rung into the run, as a recipe that can be read, edited and named."""
    for recipe in choices.recipes:
        if recipe.name not in choices.given_back:
            continue
        keys = recipe.model_dump(mode="json", exclude_defaults=True)
        keys["quantization"]["kind"] = recipe.quantization.kind
        folder = run_folder / FOLDER
        folder.mkdir(exist_ok=True)
        text = yaml.safe_dump(keys, sort_keys=False)
        write_atomically(folder / f"{recipe.name}.yaml", text, is_private=False)

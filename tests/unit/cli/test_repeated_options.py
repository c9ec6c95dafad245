"""Commands that are shown have the options that say where things are."""

from __future__ import annotations

import typer

from pipeline.cli.main import app
from prepare.own_command import WITH_REGISTRY, WITHOUT_STORE


def test_commands_are_those_that_take_the_options() -> None:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        leaves = list(getattr(command, "commands", {"": command}).values())
        if command.hidden:
            continue
        for leaf in leaves:
            options = {flag for each in leaf.params for flag in each.opts}
            assert ("--registry" in options) == (name in WITH_REGISTRY), name
            assert ("--store" in options) == (name not in WITHOUT_STORE), name

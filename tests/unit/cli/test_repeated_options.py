"""Commands that are told have the options that say where things are."""

from __future__ import annotations

import pytest
import typer

from pipeline.cli.main import app
from pipeline.cli.options import WITH_REGISTRY, WITHOUT_STORE, repeat_options

WHERE = ["promote", "--store", "/a b", "--registry=http://r:5000"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`prepare gc -n` is", "`prepare gc -n --store '/a b' --registry http://r:5000` is"),
        ("`prepare runs RUN`", "`prepare runs RUN --store '/a b'`"),
        ("`prepare show policy`", "`prepare show policy`"),
        ("`prepare model` makes variants", "`prepare model` makes variants"),
        ("Next: prepare gc, or", "Next: prepare gc, or"),
        ("Next: prepare runs, or", "Next: prepare runs --store '/a b', or"),
        ("`prepare promote RUN --store x`", "`prepare promote RUN --store x --registry http://r:5000`"),
    ],
)  # fmt: skip
def test_commands_repeat_where_things_are(text: str, expected: str) -> None:
    assert repeat_options(text, WHERE) == expected
    assert repeat_options(text, ["promote", "RUN"]) == text


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

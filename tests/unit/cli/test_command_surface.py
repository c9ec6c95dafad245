"""The public surface of the command line is a decision: every command's parameters are in a file.

Where a change is meant, `python tests/unit/cli/test_command_surface.py` writes the file again.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from pipeline.cli.main import app

SURFACE = Path(__file__).with_name("command_surface.txt")


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", below)


def type_name(annotation: Any) -> str:
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return " | ".join(type_name(each) for each in inner)
    if typing.get_origin(annotation) is list:
        return f"list[{type_name(inner[0])}]"
    if typing.get_origin(annotation) is typing.Literal:
        return "{" + ",".join(inner) + "}"
    if annotation is types.NoneType:
        return "None"
    if issubclass(annotation, Enum):
        return "{" + ",".join(str(each.value) for each in annotation) + "}"
    return str(annotation.__name__)


def parameter_line(parameter: Any, hints: dict[str, Any]) -> str:
    names = " ".join((*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = parameter.metavar or parameter.name.upper()
    default = getattr(parameter.default, "value", parameter.default)
    given = "required" if parameter.required else f"= {default!r}"
    variable = f"${parameter.envvar}" if parameter.envvar else ""
    kind = type_name(hints[parameter.name]) + range_of(parameter)
    return f"    {names:<23} {kind:<16} {given:<11} {variable}".rstrip()


def range_of(parameter: Any) -> str:
    least, largest = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None and largest is None:
        return ""
    return f" {'' if least is None else least}..{'' if largest is None else largest}"


def surface() -> str:
    lines = []
    for name, command in commands("prepare", typer.main.get_command(app)):
        hints = typing.get_type_hints(command.callback) if command.callback else {}
        lines += [name, *(parameter_line(each, hints) for each in command.params)]
    return "\n".join(lines) + "\n"


def test_every_command_takes_what_the_file_says() -> None:
    assert surface().splitlines() == SURFACE.read_text().splitlines()


def test_the_help_of_every_command_lists_its_exit_codes() -> None:
    named = dict(commands("prepare", typer.main.get_command(app)))
    del named["prepare"]
    helps = {name: each.help or "" for name, each in named.items()}
    assert not [name for name, text in helps.items() if "Exit codes" not in text]
    for name in ("model", "gate", "recheck", "tune"):
        codes = helps[f"prepare {name}"].partition("Exit codes")[2]
        assert not {"0", "1", "2", "4", "5", "130"} - set(re.findall(r"\b\d+\b", codes)), name


if __name__ == "__main__":
    SURFACE.write_text(surface())

"""Options and arguments of the commands; those of requests are declared by their fields."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from artifacts import requests
from artifacts.requests import CommandRequest, Option
from prepare.credentials import strip_credentials
from prepare.own_command import remember_place
from prepare.user_path import user_path


def parse_path(text: str) -> Path:
    """Return a given path; UsageError if it is none."""
    return user_path(text, "the command line, or a variable PREPARE_*")


MAX_DAYS = 36_500  # `datetime` represents a date so long ago

PATH: Mapping[str, Any] = {"parser": parse_path, "metavar": "PATH"}
"""Type of an option or argument that is a path."""


def option(name: str, help: str, *others: str, **more: Any) -> Any:
    """Return an option whose help gives its default."""
    return typer.Option(name, *others, help=help, **{"show_default": False, **more})


def setting(name: str, help: str, *others: str, **more: Any) -> Any:
    """Return an option whose variable is PREPARE_NAME."""
    word = name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return option(name, help, *others, envvar=f"PREPARE_{word}", **more)


def argument(help: str, **more: Any) -> Any:
    """Return an argument; its help gives the default."""
    return typer.Argument(help=help, show_default=False, **more)


def declare(declared: Option, *, is_path: bool = False) -> Any:
    """Return the parser's form of a declared option or argument."""
    more: dict[str, Any] = {}
    if is_path:
        more |= PATH
    if declared.is_address:
        more["parser"] = strip_credentials
    if declared.metavar:
        more["metavar"] = declared.metavar
    if declared.minimum is not None:
        more["min"] = declared.minimum
    if declared.flag == "--registry":
        more["callback"] = remember
    if not declared.flag:
        return argument(declared.help, **more)
    name = f"{declared.flag}/{declared.off}" if declared.off else declared.flag
    others = [declared.short] if declared.short else []
    make = setting if declared.has_variable else option
    return make(name, declared.help, *others, show_default=declared.shows_default, **more)


def remember(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Remember a place that the command line names, for the commands that are shown."""
    source = context.get_parameter_source(str(parameter.name))
    if value is not None and source is not None and source.name == "COMMANDLINE":
        remember_place(parameter.opts[0], str(value))
    return value


def asks(
    kind: type[CommandRequest], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a request.

    The command is called with the request first, then with its further options. `without` names
    fields that keep their defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        asked = [name for name in kind.options() if name not in without]

        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in asked}
            command(kind(**_written(values)), **given)

        declared = [_parameter(kind, name) for name in asked]
        others = list(inspect.signature(command).parameters.values())[1:]
        hints = typing.get_type_hints(command, include_extras=True)
        declared += [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in others
        ]
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in declared}
        run.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(kind: type[CommandRequest], name: str) -> inspect.Parameter:
    """Return the parser's parameter of a request's field."""
    annotation = typing.get_type_hints(kind)[name]
    default = next(declared.default for declared in fields(kind) if declared.name == name)
    if typing.get_origin(annotation) is tuple:
        annotation = list[str] | None
        default = None
    is_path = Path in _members(annotation)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[annotation, declare(kind.options()[name], is_path=is_path)],
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return typing.get_args(annotation)
    return (annotation,)


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were given, as a request has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


NameOption = Annotated[str | None, declare(requests.NAME)]
PolicyOption = Annotated[str | None, declare(requests.POLICY)]
RegistryOption = Annotated[str | None, declare(requests.REGISTRY)]
SignOption = Annotated[bool, declare(requests.SIGN)]
EvalDataOption = Annotated[Path | None, declare(requests.EVAL_DATA, is_path=True)]
WeightsOption = Annotated[Path | None, declare(requests.WEIGHTS, is_path=True)]
TrustOption = Annotated[bool, declare(requests.TRUST_REMOTE_CODE)]
ReferenceArgument = Annotated[str, declare(requests.REFERENCE)]
PublicKeyOption = Annotated[
    Path | None,
    setting(
        "--public-key",
        "PEM file; the files must be signed with this key. Default: that of the settings file.",
        metavar="FILE",
        parser=parse_path,
    ),
]
StoreOption = Annotated[
    Path | None,
    setting(
        "--store",
        "Folder of finished stages and runs. Default: $PREPARE_HOME/store.",
        callback=remember,
        **PATH,
    ),
]


class Launcher(StrEnum):
    """Starts the copies of a run."""

    SLURM = "slurm"
    RAY = "ray"


OnOption = Annotated[
    Launcher | None,
    setting(
        "--on",
        "Have slurm or ray start the copies of the run, on nodes that share the store.",
        show_default=False,
    ),
]
CopiesOption = Annotated[
    int | None,
    option("--copies", "With --on: how many. Default: one for each model that is served.", min=1),
]
RunOption = Annotated[
    str | None,
    option(
        "--run",
        "Id of the run. A second process with the id works on the same run; without a "
        "checkpoint it takes the options from the first.",
        metavar="ID",
    ),
]
RetryOption = Annotated[
    bool, option("--retry", "With --run: try again what failed, of a run that ended.")
]
GpuOption = Annotated[
    str | None,
    setting("--gpu", "Kind of GPU to plan for, such as h100, or a YAML file: say what fits on it."),
]
GpusOption = Annotated[
    int, setting("--gpus", "How many of them.", show_default=True, min=1, max=1024)
]
ContextOption = Annotated[
    int | None,
    setting(
        "--context",
        "Tokens of a sequence. Default: the model's, or the profile's max-model-len.",
        min=1,
    ),
]
RegisteredArgument = Annotated[str, argument("Registered name.")]
JudgedRunArgument = Annotated[
    str, typer.Argument(help="Run id, its beginning, or 'latest': the last that was judged.")
]
IfCurrentOption = Annotated[
    str | None,
    option(
        "--if-current",
        "Only if the alias points to this version now. Default: the version at the start.",
        metavar="VERSION",
    ),
]
InsecureOption = Annotated[bool, option("--insecure", "The OCI registry speaks HTTP, not HTTPS.")]
JsonOption = Annotated[bool, setting("--json", "Print JSON on stdout.")]
VerboseOption = Annotated[bool, option("--verbose", "Print every stage, size and table.")]

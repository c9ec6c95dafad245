"""Options and arguments that several commands share."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from prepare.credentials import strip_credentials
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


CheckpointArgument = Annotated[
    str | None,
    argument(
        "A folder, a Hub id (org/name, optionally @revision), or demo:smollm2-135m.",
        metavar="CHECKPOINT",
        parser=strip_credentials,
    ),
]
RecipeOption = Annotated[
    list[str] | None,
    setting(
        "--recipe",
        "Recipe name or YAML file; repeatable. Default: fp8-dynamic and awq-w4a16.",
        "-r",
    ),
]
VariantOption = Annotated[
    list[str] | None,
    setting(
        "--variant",
        "Variant that others quantized: a folder or Hub id (org/name@revision), with NAME= "
        "before it or not; repeatable. Without --recipe no recipe runs.",
        parser=strip_credentials,
        metavar="[NAME=]CHECKPOINT",
    ),
]
ServedVariantOption = Annotated[
    list[str] | None,
    option(
        "--served-variant",
        "The checkpoint's own weights, served with further engine arguments, such as "
        "online='--quantization fp8'; repeatable.",
        metavar="NAME=ARGUMENTS",
    ),
]
ProfileOption = Annotated[
    str,
    setting("--profile", "auto, cpu, h100, h200 or a YAML file.", show_default=True),
]
PolicyOption = Annotated[
    str | None,
    setting(
        "--policy", "Policy name or YAML file. Default: 'default', and 'demo' for demo checkpoints."
    ),
]
NameOption = Annotated[
    str | None,
    setting("--name", "Name in the registry. Default: the checkpoint's own."),
]
RegistryOption = Annotated[
    str | None,
    setting(
        "--registry",
        "MLflow tracking URI. Default: a SQLite registry in the store's folder.",
        parser=strip_credentials,
        metavar="URI",
    ),
]
PublicKeyOption = Annotated[
    Path | None,
    setting(
        "--public-key",
        "PEM file; the files must be signed with this key. Default: that of the settings file.",
        metavar="FILE",
        parser=parse_path,
    ),
]
SignOption = Annotated[
    bool,
    setting(
        "--sign",
        "Sign what is registered, with $PREPARE_PRIVATE_KEY or the key of the settings file.",
    ),
]
EvalDataOption = Annotated[
    Path | None,
    setting(
        "--eval-data",
        "Folder of your own questions (mmlu*.jsonl, mbpp*.jsonl, summarization*.jsonl).",
        **PATH,
    ),
]
StoreOption = Annotated[
    Path | None,
    setting(
        "--store",
        "Folder of finished stages and runs. Default: $PREPARE_HOME/store.",
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
WeightsOption = Annotated[
    Path | None,
    option(
        "--weights",
        "Folder that `prepare pull` made. Default: the version's own, where it is a folder of "
        "this machine.",
        **PATH,
    ),
]
AblateOption = Annotated[
    bool,
    setting(
        "--ablate",
        "As --screen, and measure the weights and the KV cache of each variant alone.",
    ),
]
ScreenOption = Annotated[
    bool,
    setting(
        "--screen",
        "Make and serve each variant once, and compare size, loss on conversations and speed. "
        "Nothing is gated or promoted.",
    ),
]


class Until(StrEnum):
    """Ends the gating of further variants."""

    FIRST = "pass"


UntilOption = Annotated[
    Until | None,
    setting(
        "--until",
        "Gate one variant after another, the smallest first, up to one that passes. All count in "
        "the error rate.",
        show_default=False,
    ),
]
RemeasureOption = Annotated[
    list[str] | None,
    setting(
        "--remeasure",
        "Measure this gate again though it is over: a suite, or a gate on speed such as "
        "ratio.chat. It is counted as a further measurement; repeatable.",
    ),
]
GpuOption = Annotated[
    str | None,
    setting("--gpu", "Kind of GPU to plan for, such as h100, or a YAML file: say what fits on it."),
]
GpusOption = Annotated[
    int, setting("--gpus", "How many of them.", show_default=True, min=1, max=1024)
]
GpusACopyOption = Annotated[
    int | None,
    setting(
        "--gpus-a-copy",
        "GPUs that one copy of each model is spread over. Default: the profile's number, or the "
        "fewest that fit well.",
        min=1,
    ),
]
ContextOption = Annotated[
    int | None,
    setting(
        "--context",
        "Tokens of a sequence. Default: the model's, or the profile's max-model-len.",
        min=1,
    ),
]
ReferenceArgument = Annotated[
    str,
    argument(
        "Registered name, '@', alias or version.", metavar="NAME@ALIAS", parser=strip_credentials
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
TrustOption = Annotated[
    bool,
    setting("--trust-remote-code", "Run Python code that comes with the checkpoint."),
]
PromoteOption = Annotated[
    bool,
    setting(
        "--promote/--no-promote",
        "Register what passed and move the alias; or leave that to `prepare promote RUN`.",
        show_default=True,
    ),
]


WITH_REGISTRY = frozenset(
    {"export", "gc", "model", "plan", "promote", "pull", "push", "recheck", "registry"}
    | {"rollback", "serve", "tune", "verify"}
)
WITHOUT_STORE = frozenset({"doctor", "show"})
# With an argument, but for `runs`: "`prepare model` makes variants" is no command to copy.
_COMMAND = re.compile(
    r"`(prepare (?=runs|\w+ )(\w+)[^`]*)`|(?<=Next: )(prepare (?=runs|\w+ )(\w+)[^`,;\n]*)"
)


def repeat_options(text: str, arguments: Sequence[str] | None = None) -> str:
    """Add --store and --registry to commands in the text."""
    found = {
        option: value
        for option in ("--store", "--registry")
        if (value := _find(option, sys.argv[1:] if arguments is None else arguments))
    }

    def repeat(match: re.Match[str]) -> str:
        whole, command = match[1] or match[3], match[2] or match[4]
        for option, value in found.items():
            taken = command in WITH_REGISTRY or option == "--store"
            if taken and command not in WITHOUT_STORE and option not in whole:
                whole = f"{whole} {option} {shlex.quote(value)}"
        return f"`{whole}`" if match[1] else whole

    return _COMMAND.sub(repeat, text) if found else text


def _find(option: str, arguments: Sequence[str]) -> str | None:
    for number, word in enumerate(arguments):
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None

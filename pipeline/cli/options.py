"""Options that several commands share; each has an environment variable PREPARE_*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.credentials import take_out
from pipeline.core.user_path import user_path


def given_path(text: str) -> Path:
    """A path of the command line, or of its variable; raises UsageError where it can be none."""
    return user_path(text, "the command line, or a variable PREPARE_*")


CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        parser=take_out,
        help="A folder, a Hub id (org/name, optionally @revision), or demo:smollm2-135m.",
        show_default=False,
    ),
]
RecipeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        "-r",
        envvar="PREPARE_RECIPE",
        help="Recipe name or YAML file; repeatable. Default: fp8-dynamic and awq-w4a16.",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile", envvar="PREPARE_PROFILE", help="auto, cpu, h100, h200 or a YAML file."
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        envvar="PREPARE_POLICY",
        help="Policy name or YAML file. Default: 'default', and 'demo' for demo checkpoints.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        envvar="PREPARE_NAME",
        help="Name in the registry. Default: the checkpoint's own.",
        show_default=False,
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="PREPARE_REGISTRY",
        parser=take_out,
        metavar="URI",
        help="MLflow tracking URI, hf://NAMESPACE or oci:///FOLDER. Default: a SQLite registry in "
        "the store.",
        show_default=False,
    ),
]
EvalDataOption = Annotated[
    Path | None,
    typer.Option(
        "--eval-data",
        envvar="PREPARE_EVAL_DATA",
        help="Folder of your own questions (mmlu*.jsonl, mbpp*.jsonl, summarization*.jsonl).",
        show_default=False,
        parser=given_path,
        metavar="PATH",
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="PREPARE_STORE",
        help="Folder of finished stages and runs. Default: $PREPARE_HOME/store.",
        show_default=False,
        parser=given_path,
        metavar="PATH",
    ),
]
DryRunOption = Annotated[
    bool | None,
    typer.Option(
        "--dry-run/--no-dry-run",
        envvar="PREPARE_DRY_RUN",
        help="Try each calibrated recipe on two layers first. Default: from 2 GB of weights on.",
        show_default=False,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        envvar="PREPARE_GPU",
        help="Kind of GPU to plan for, such as h100, or a YAML file: say what fits on it.",
        show_default=False,
    ),
]
GpusOption = Annotated[
    int, typer.Option("--gpus", envvar="PREPARE_GPUS", min=1, help="How many of them.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        envvar="PREPARE_CONTEXT",
        min=1,
        help="Tokens of a sequence. Default: the model's, or the profile's max-model-len.",
        show_default=False,
    ),
]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME@ALIAS",
        parser=take_out,
        help="Registered name, '@', alias or version.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", envvar="PREPARE_JSON", help="Print JSON on stdout.")
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--yes-trust-remote-code",
        envvar="PREPARE_YES_TRUST_REMOTE_CODE",
        help="Run Python code that comes with the checkpoint.",
    ),
]
PromoteOption = Annotated[
    bool,
    typer.Option(
        "--promote/--no-promote",
        envvar="PREPARE_PROMOTE",
        help="Register what passed and move the alias; or leave that to `prepare promote RUN`.",
    ),
]

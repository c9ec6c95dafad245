"""`prepare doctor`: checks the machine, and builds the managed Python environments."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from pipeline.cli.display import open_display
from pipeline.cli.options import JsonOption
from pipeline.cli.tables import print_json, print_table
from pipeline.environments.definition import RUN_ENVIRONMENTS, definitions
from prepare.errors import ExitCode, UsageError
from recipes.accelerator import Accelerator

if TYPE_CHECKING:
    from pipeline.environments.environment import EnvironmentStatus
    from pipeline.environments.settings import Settings

WIDTH_WITHOUT_TERMINAL = 200  # its paths are long


def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="With --build: quantize, serve, evaluate (the default), or another listed one.",
        ),
    ] = None,
    build: Annotated[
        bool, typer.Option("--build", help="Build the environments now, if they are not built.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --build: build them again, which repairs damaged ones."),
    ] = False,
    accelerator: Annotated[
        Accelerator | None,
        typer.Option(help="Accelerator to build for. Default: this machine's."),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Serving profile, by name or path, that is to be served here.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Check that environments can be built and used; name the fix of each problem.

    It lists the environments with their state, and what this machine cannot serve by
    the profile, or serves by a fallback. With --build it builds them, which is
    otherwise done on first use.

    Examples

      prepare doctor

      prepare doctor --profile h100

      prepare doctor --build serve --accelerator cuda

      prepare doctor --build serve --force

    Exit codes: 0 no problem, 1 a problem, 2 usage.
    """
    from pipeline.environments.settings import load_settings

    settings = load_settings()
    if build:
        _build(names, accelerator, settings, force=force, as_json=as_json)
        return
    if names or force or accelerator is not None:
        raise UsageError(
            "environments are named only to build them",
            where="NAME, --accelerator, --force",
            hint="add --build",
        )
    _diagnose(settings, profile, as_json=as_json)


def _build(
    names: list[str] | None,
    accelerator: Accelerator | None,
    settings: Settings,
    *,
    force: bool,
    as_json: bool,
) -> None:
    from pipeline.environments.environment import detect_accelerator, ensure
    from pipeline.preflight.build_faults import find_build_faults
    from pipeline.preflight.survey import refuse

    chosen = accelerator or detect_accelerator()
    with open_display(as_json=as_json) as progress:
        if accelerator is None and chosen is Accelerator.CPU:
            progress.note(
                "building for the CPU: no NVIDIA GPU is found here; "
                "for GPUs: prepare doctor --build --accelerator cuda"
            )
        wanted = names or list(RUN_ENVIRONMENTS)
        refuse(find_build_faults(wanted, chosen, settings))
        built = [ensure(name, chosen, settings, progress, force=force) for name in wanted]
    if as_json:
        plain = [
            {**dataclasses.asdict(environment), "python": str(environment.python)}
            for environment in built
        ]
        print_json({"schema_version": 1, "built": plain})
        return
    print_table(
        ("environment", "packages", "python"),
        [(str(item.name), str(len(item.versions)), str(item.python)) for item in built],
        width=WIDTH_WITHOUT_TERMINAL,
    )


def _diagnose(settings: Settings, profile: str, *, as_json: bool) -> None:
    from pipeline.environments.gpu_host import Severity
    from pipeline.plan.serving_profile import load_named_profile
    from pipeline.preflight.doctor import diagnose

    findings = diagnose(settings, None if profile == "auto" else load_named_profile(profile))
    environments = _statuses(settings)
    if as_json:
        plain = [
            {**dataclasses.asdict(environment), "path": str(environment.path)}
            for environment in environments
        ]
        plain_findings = [dataclasses.asdict(finding) for finding in findings]
        print_json({"schema_version": 1, "environments": plain, "findings": plain_findings})
    else:
        print_table(
            ("environment", "state", "size", "where", "what is wrong"),
            [
                (
                    item.key,
                    str(item.state),
                    decimal(item.size_bytes),
                    str(item.path),
                    item.reason,
                )
                for item in environments
            ],
            width=WIDTH_WITHOUT_TERMINAL,
        )
        print_table(
            ("", "what", "found", "hint"),
            [(str(item.severity), item.subject, item.message, item.hint) for item in findings],
            width=WIDTH_WITHOUT_TERMINAL,
        )
    if any(item.severity is Severity.PROBLEM for item in findings):
        raise typer.Exit(ExitCode.EXPECTED_ERROR)


def _statuses(settings: Settings) -> list[EnvironmentStatus]:
    from pipeline.environments.environment import EnvironmentState, detect_accelerator, status

    own = detect_accelerator()
    statuses: dict[str, EnvironmentStatus] = {}
    for definition in definitions([own, *(other for other in Accelerator if other is not own)]):
        item = status(definition.name, definition.accelerator, settings)
        if definition.accelerator is own or item.state is not EnvironmentState.MISSING:
            statuses.setdefault(item.key, item)
    return list(statuses.values())

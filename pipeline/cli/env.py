"""`prepare env`: see, build, check and collect the managed Python environments."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.display import open_display
from pipeline.cli.options import MAX_DAYS
from pipeline.cli.tables import print_table
from pipeline.core.errors import ExitCode
from pipeline.environments.definition import RUN_ENVIRONMENTS, Accelerator, EnvironmentName

if TYPE_CHECKING:
    from pipeline.environments.settings import Settings
    from pipeline.environments.status import EnvironmentStatus

WIDTH_WITHOUT_TERMINAL = 200  # its paths are long

app = typer.Typer(
    name="env",
    help="Managed Python environments: each kind of work has its own, built on first use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Names = Annotated[
    list[EnvironmentName] | None,
    typer.Argument(
        metavar="NAME",
        help="quantize, serve, evaluate (these three by default), quantize-autoawq.",
    ),
]
ForAccelerator = Annotated[
    Accelerator | None,
    typer.Option(help="Accelerator to build for. Default: this machine's."),
]


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """List the environments with their state, place and size.

    Example

      prepare env list --json
    """
    from pipeline.environments.settings import load_settings

    found = _statuses(load_settings())
    if as_json:
        _print_json(map(dataclasses.asdict, found))
        return
    print_table(
        ("environment", "state", "size", "where", "what is wrong"),
        [
            (item.key, str(item.state), _size(item.size_bytes), str(item.path), item.reason)
            for item in found
        ],
        width=WIDTH_WITHOUT_TERMINAL,
    )


@app.command()
def build(names: Names = None, accelerator: ForAccelerator = None, as_json: AsJson = False) -> None:
    """Build environments now rather than on first use; repairs damaged ones.

    Examples

      prepare env build

      prepare env build serve --accelerator cuda
    """
    from pipeline.environments.environment import detect_accelerator, ensure
    from pipeline.environments.settings import load_settings

    settings = load_settings()
    chosen = accelerator or detect_accelerator()
    with open_display(as_json=as_json) as progress:
        if accelerator is None and chosen is Accelerator.CPU:
            progress.note(
                "building for the CPU: no NVIDIA GPU is found here; "
                "for GPUs: prepare env build --accelerator cuda"
            )
        built = [
            ensure(name, chosen, settings, progress) for name in names or list(RUN_ENVIRONMENTS)
        ]
    if as_json:
        _print_json(map(dataclasses.asdict, built))
        return
    print_table(
        ("environment", "packages", "python"),
        [(str(item.name), str(len(item.versions)), str(item.python)) for item in built],
        width=WIDTH_WITHOUT_TERMINAL,
    )


@app.command()
def doctor(
    profile: Annotated[
        str,
        typer.Option(help="Serving profile, by name or path, that is to be served here."),
    ] = "auto",
    build_host: Annotated[
        bool,
        typer.Option(
            "--build-host",
            help="Look whether the environments for GPUs can be built here, on a host without one.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that environments can be built and used; name the fix of each problem.

    It also lists what this machine cannot serve by the profile, or serves by a fallback.

    Examples

      prepare env doctor

      prepare env doctor --profile h100

      prepare env doctor --build-host

    Exit codes: 0 no problem, 1 a problem, 2 usage.
    """
    from pipeline.environments.doctor_check import Severity
    from pipeline.environments.settings import load_settings
    from pipeline.plan.serving_profile import load_named_profile
    from pipeline.preflight.doctor import diagnose, diagnose_build_host

    if build_host:
        findings = diagnose_build_host(load_settings())
    else:
        chosen = None if profile == "auto" else load_named_profile(profile)
        findings = diagnose(load_settings(), chosen)
    if as_json:
        _print_json(map(dataclasses.asdict, findings))
    else:
        print_table(
            ("", "what", "found", "hint"),
            [(str(item.severity), item.subject, item.message, item.hint) for item in findings],
            width=WIDTH_WITHOUT_TERMINAL,
        )
    if any(item.severity is Severity.PROBLEM for item in findings):
        raise typer.Exit(ExitCode.EXPECTED_ERROR)


@app.command()
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
    older_than: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_DAYS,
            metavar="DAYS",
            help="Remove outdated environments that were not used for this long.",
        ),
    ] = 7,
    as_json: AsJson = False,
) -> None:
    """Remove incomplete environments, and those of outdated locks.

    Examples

      prepare env gc --dry-run

      prepare env gc --older-than 0
    """
    from pipeline.environments.garbage_collection import collect
    from pipeline.environments.settings import load_settings

    removed = collect(load_settings(), dry_run=dry_run, older_than_days=older_than)
    if as_json:
        _print_json(map(dataclasses.asdict, removed))
        return
    if not removed:
        typer.echo("nothing to remove")
        return
    print_table(
        ("would be removed" if dry_run else "removed", "size", "why"),
        [(str(item.path), _size(item.size_bytes), item.reason) for item in removed],
        width=WIDTH_WITHOUT_TERMINAL,
    )


def _statuses(settings: Settings) -> list[EnvironmentStatus]:
    from pipeline.environments.environment import EnvironmentState, detect_accelerator, status

    own = detect_accelerator()
    found: dict[str, EnvironmentStatus] = {}
    for accelerator in (own, *(other for other in Accelerator if other is not own)):
        for name in EnvironmentName:
            item = status(name, accelerator, settings)
            if accelerator is own or item.state is not EnvironmentState.MISSING:
                found.setdefault(item.key, item)
    return list(found.values())


def _print_json(items: Iterable[dict[str, Any]]) -> None:
    typer.echo(json.dumps(list(items), indent=2, default=str))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes else "-"

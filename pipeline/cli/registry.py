"""`prepare registry`: registered versions, aliases, and their history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pipeline.cli.options import JsonOption, RegisteredArgument, RegistryOption, StoreOption
from pipeline.cli.tables import print_json, print_table
from pipeline.core.errors import UsageError
from pipeline.core.escape import log_line

if TYPE_CHECKING:
    from artifacts.registry import Model, Registry, Version
    from pipeline.environments.settings import Settings

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Registry: versions, aliases and how they moved.",
)


@app.command("list")
def list_models(
    registry: RegistryOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List registered versions and their aliases.

    Examples

      prepare registry list

      prepare registry list --registry http://mlflow.example:5000 --json
    """
    from pipeline.environments.settings import load_settings

    found = open_asked(registry, load_settings(store))
    versions = [version for name in found.names() for version in found.versions(name)]
    if as_json:
        print_json([version.to_dict() for version in versions])
        return
    rows = [
        [v.name, v.version, ", ".join(v.aliases), v.tags.get("prepare.recipe", ""), v.source]
        for v in versions
    ]
    print_table(["name", "version", "aliases", "recipe", "weights"], rows)


@app.command("show")
def show(
    name: RegisteredArgument,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one registered model: every version with its tags.

    Example

      prepare registry show smollm2-135m
    """
    from pipeline.environments.settings import load_settings

    found = open_asked(registry, load_settings(store))
    versions = find_model(found, name).versions
    if as_json:
        print_json([version.to_dict() for version in versions])
        return
    for version in versions:
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        title = log_line(f"{version.name} version {version.version}{aliases}")
        print(f"{title}\n  {log_line(version.source)}")
        print_table(["tag", "value"], [[key, version.tags[key]] for key in sorted(version.tags)])


@app.command("history")
def history(
    name: RegisteredArgument,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every move of a model's aliases: who, when, for which run, and why.

    Examples

      prepare registry history smollm2-135m

      prepare registry history smollm2-135m --json
    """
    from pipeline.environments.settings import load_settings

    found = open_asked(registry, load_settings(store))
    entries = find_model(found, name).history
    if as_json:
        print_json([entry.model_dump() for entry in entries])
        return
    rows = [
        [
            str(entry.number),
            entry.when[:19],
            entry.who,
            entry.action,
            f"{entry.alias}: {f'{entry.replaced} to ' if entry.replaced else ''}{entry.version}",
            entry.run,
            entry.verdict,
            entry.reason,
        ]
        for entry in entries
    ]
    print_table(["", "when (UTC)", "who", "action", "move", "run", "verdict", "reason"], rows)


def open_asked(registry: str | None, settings: Settings) -> Registry:
    """Return the registry of the options, else of the settings, else the store's own."""
    from artifacts.registry import Registry
    from pipeline.plan.resolved_options import registry_uri

    return Registry(registry_uri(registry, settings))


def find_asked(
    reference: str, registry: str | None, settings: Settings
) -> tuple[Registry, Version]:
    """Return that registry and the version NAME@ALIAS in it; raise UsageError if absent."""
    from artifacts.deploy.deployment import find_version

    found = open_asked(registry, settings)
    return found, find_version(found, reference)


def find_model(registry: Registry, name: str) -> Model:
    """Return the model of that name; raise UsageError if there is none."""
    found = registry.model(name)
    if found is None:
        raise UsageError(
            f"nothing is registered as '{name}'",
            where=registry.uri,
            hint=f"known: {', '.join(registry.names()) or 'nothing yet'}",
        )
    return found

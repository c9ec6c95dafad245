"""`prepare registry`: what has been promoted."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import JsonOption, RegistryOption, StoreOption

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Registry: versions, aliases and their evidence.",
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
    from artifacts.registry.mlflow_registry import MlflowRegistry
    from pipeline.cli.tables import print_json, print_table
    from pipeline.preparation import registry_uri
    from pipeline.settings import load_settings

    found = MlflowRegistry(registry_uri(registry, load_settings(store)))
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
    name: Annotated[str, typer.Argument(help="Registered name.", show_default=False)],
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one registered model: every version with its tags.

    Example

      prepare registry show smollm2-135m
    """
    from artifacts.registry.mlflow_registry import MlflowRegistry
    from pipeline.cli.tables import print_json, print_table
    from pipeline.errors import UsageError
    from pipeline.preparation import registry_uri
    from pipeline.settings import load_settings

    found = MlflowRegistry(registry_uri(registry, load_settings(store)))
    versions = found.versions(name)
    if not versions:
        raise UsageError(
            f"nothing is registered as '{name}'",
            where=found.uri,
            cure=f"known: {', '.join(found.names()) or 'nothing yet'}",
        )
    if as_json:
        print_json([version.to_dict() for version in versions])
        return
    for version in versions:
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        print(f"{version.name} version {version.version}{aliases}\n  {version.source}")
        print_table(["tag", "value"], [[key, version.tags[key]] for key in sorted(version.tags)])

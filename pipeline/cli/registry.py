"""`prepare registry`: registered versions, aliases, and their history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pipeline.cli.options import JsonOption, RegistryOption, StoreOption, argument, option
from pipeline.cli.tables import print_json, print_table
from prepare.errors import UsageError
from prepare.escape import log_line

OVERVIEW = (
    "prepare.recipe",
    "prepare.verdict",
    "prepare.not_shown",
    "prepare.policy",
    "prepare.run",
)
SHORT = 12
_DIGEST = re.compile("[0-9a-f]{64}")

if TYPE_CHECKING:
    from artifacts.registry import Move, Registry, Version
    from pipeline.environments.settings import Settings


def registry(
    name: Annotated[
        str | None, argument("Registered name. Default: list all versions.", metavar="[NAME]")
    ] = None,
    history: Annotated[
        bool, option("--history", "Every move of its aliases: who, when, for which run, and why.")
    ] = False,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List registered versions; show one model's tags, or how its aliases moved.

    Digests are shown by their beginning; --json has all of it.

    Examples

      prepare registry --registry http://mlflow.example:5000

      prepare registry smollm2-135m

      prepare registry smollm2-135m --history --json

    Exit codes: 0 shown, 1 error, 2 usage.
    """
    from pipeline.environments.settings import load_settings

    if history and name is None:
        raise UsageError("--history needs a name", where="prepare registry", hint="see --help")
    opened = open_asked(registry, load_settings(store))
    if name is None:
        versions = [
            version for model_name in opened.names() for version in opened.versions(model_name)
        ]
    else:
        model = opened.existing(name)
        versions = list(model.versions)
    if name is not None and history:
        print_history(model.history, as_json=as_json)
    elif as_json:
        print_json([version.to_dict() for version in versions])
    elif name is None:
        rows = [
            [v.name, v.version, ", ".join(v.aliases), *(v.tags.get(tag, "") for tag in OVERVIEW)]
            for v in versions
        ]
        heads = [tag.removeprefix("prepare.") for tag in OVERVIEW]
        print_table(["name", "version", "aliases", *heads], rows)
    if name and not (versions or history or as_json):
        print(f"{name} has no version; --history names those that were deleted in MLflow")
    for version in versions if name and not (history or as_json) else ():
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        title = log_line(f"{version.name} version {version.version}{aliases}")
        print(f"{title}\n  {log_line(version.source)}")
        tags = sorted((tag, value) for tag, value in version.tags.items() if value)
        shown = [[tag, v[:SHORT] if _DIGEST.fullmatch(v) else v] for tag, v in tags]
        print_table(["tag", "value"], shown)


def print_history(moves: Sequence[Move], *, as_json: bool) -> None:
    """Print one row for each move."""
    if as_json:
        print_json([move.model_dump() for move in moves])
        return
    rows = [
        [
            str(move.number),
            move.when[:19],
            move.who,
            move.action,
            f"{move.alias}: {f'{move.replaced} to ' if move.replaced else ''}{move.version}",
            move.run,
            move.verdict,
            move.reason,
        ]
        for move in moves
    ]
    print_table(["", "when (UTC)", "who", "action", "move", "run", "verdict", "reason"], rows)


def open_asked(registry: str | None, settings: Settings) -> Registry:
    """Return the options', settings' or store's registry."""
    from artifacts.registry import Registry

    return Registry(settings.registry_uri(registry))


def find_asked(
    reference: str, registry: str | None, settings: Settings
) -> tuple[Registry, Version]:
    """Return registry and version, or raise UsageError."""
    from artifacts.deploy.registered import find_version

    opened = open_asked(registry, settings)
    return opened, find_version(opened, reference)

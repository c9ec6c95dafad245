"""`prepare rollback`: moves an alias back to the version it pointed to before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipeline.cli.options import (
    IfCurrentOption,
    JsonOption,
    RegisteredArgument,
    RegistryOption,
    StoreOption,
    option,
)
from pipeline.cli.registry import open_asked
from pipeline.cli.tables import print_json
from prepare.errors import StoreError
from prepare.interruption import hold_interruptions
from prepare.own_command import own_command

if TYPE_CHECKING:
    from artifacts.registry import Version


def rollback(
    name: RegisteredArgument,
    to: Annotated[
        str | None,
        option("--to", "Go to this version. Default: the one before.", metavar="VERSION"),
    ] = None,
    reason: Annotated[str, option("--reason", "Kept in the history.")] = "",
    alias: Annotated[str, option("--alias", "Alias to move back.", show_default=True)] = "champion",
    if_current: IfCurrentOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move an alias back to the version that it pointed to before.

    Each further call goes back one version; the alias `previous` goes with it, and is
    removed when no version is left before. Interrupted, it ends after its move. Only a
    repetition with --to or --if-current is safe after a SIGKILL.

    Examples

      prepare rollback smollm2-135m --reason "answers in the wrong language"

      prepare rollback smollm2-135m --to 3

    Exit codes: 0 moved, 1 error (the alias moved meanwhile), 2 usage, or nothing to
    go back to.
    """
    from artifacts.registry import Cause, who_am_i
    from pipeline.environments.settings import load_settings

    settings = load_settings(store)
    opened = open_asked(registry, settings)
    cause = Cause("rollback", who_am_i(), reason=reason)
    in_use = _hold_files(opened.versions(name), settings.store)
    # Interrupted between its move and these lines, it would be repeated, and go one further.
    with in_use, opened.lock(), hold_interruptions():
        move = opened.roll_back(name, alias, cause, to=to, replaces=if_current)
        if as_json:
            print_json({"schema_version": 1, "name": name, **move.model_dump()})
            return
        replaced = f", replacing version {move.replaced}" if move.replaced else ""
        print(
            f"{name}@{alias} is version {move.version} again{replaced}\n"
            f"Next: {own_command('registry', name, '--history')}"
        )


def _hold_files(versions: Sequence[Version], root: Path) -> AbstractContextManager[object]:
    """Hold the store if it has versions: `prepare gc` would remove their files meanwhile.

    A store that cannot be held, such as another user's, prevents no rollback.
    """
    from prepare.store import Store

    if not any(Path(version.source).is_relative_to(root.resolve()) for version in versions):
        return nullcontext()
    try:
        return Store(root).in_use(_tell)
    except StoreError as error:
        _tell(f"the store is not held against `prepare gc`: {error.message}")
        return nullcontext()


def _tell(text: str) -> None:
    print(text, file=sys.stderr)

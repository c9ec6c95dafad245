"""`prepare gc`: removes unreferenced items from the store."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

from rich.filesize import decimal

from pipeline.cli.display import open_display
from pipeline.cli.options import MAX_DAYS, JsonOption, RegistryOption, StoreOption, option
from pipeline.cli.tables import print_json, print_table


def gc(
    older_than: Annotated[
        float,
        option(
            "--older-than",
            "Keep what is younger, and what such runs used.",
            metavar="DAYS",
            show_default=True,
            min=0,
            max=MAX_DAYS,
        ),
    ] = 30,
    dry_run: Annotated[bool, option("--dry-run", "List it; remove nothing.")] = False,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove unreferenced stages, runs and answers, and environments of old locks.

    It keeps what an alias or the history of a registry references, what a run younger
    than --older-than used, and all that these depend on. It asks every registry that
    promotions and rechecks of this store used; --registry adds one. Environments
    of other locks, and compile caches, go after --older-than without use.

    Examples

      prepare gc --dry-run

      prepare gc --older-than 7

    Exit codes: 0 done, 1 error (a registry that does not answer, a run in
    progress), 2 usage.
    """
    from artifacts.garbage_collection import find_garbage, remove
    from pipeline.environments.garbage_collection import collect
    from pipeline.environments.settings import load_settings

    settings = load_settings(store)
    opened = settings.open_store()
    registries = [registry] if registry else []
    with open_display(as_json=as_json) as progress, ExitStack() as held:
        if dry_run:  # also of a read-only store
            opened.refuse_in_use()
        else:
            held.enter_context(opened.collect())
        garbage = find_garbage(opened, registries, older_than, progress)
        for number, item in enumerate(() if dry_run else garbage, start=1):
            remove(item, opened)
            progress.advance("remove", number, len(garbage))
    unused = collect(settings, dry_run=dry_run, older_than_days=older_than)
    size = sum(item.size for item in garbage) + sum(item.size_bytes for item in unused)
    if as_json:
        removed = [item.to_dict() for item in garbage]
        removed += [
            {"kind": "environment", "path": str(item.path), "bytes": item.size_bytes}
            for item in unused
        ]
        print_json({"schema_version": 1, "dry_run": dry_run, "bytes": size, "removed": removed})
        return
    things = [(item.kind, item.size, item.path) for item in garbage]
    things += [("environment", item.size_bytes, item.path) for item in unused]
    if things:
        rows = [[kind, decimal(n), str(path)] for kind, n, path in things]
        print_table(["what", "size", "where"], rows)
    words = "would be removed" if dry_run else "removed"
    print(f"{len(things)} things {words}, {decimal(size)}, from {opened.root}")

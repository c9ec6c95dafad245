"""`prepare verify`: computes a run's verdicts again from the answers that it kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption, StoreOption

if TYPE_CHECKING:
    from pipeline.verdict_check import VariantCheck


def verify(
    run: Annotated[str, typer.Argument(help="Run id, its beginning, or 'latest'.")] = "latest",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute every verdict of a run again, from its kept answers alone.

    No server and no network: the digests of the evidence are checked, each gate
    is judged anew, and every difference from what the run says is named.

    Examples

      prepare verify

      prepare verify 20261121-0915 --json

    Exit codes: 0 all as kept, 1 something differs, 2 usage.
    """
    from pipeline.cli.tables import print_json, print_table
    from pipeline.errors import ExitCode
    from pipeline.run_log import find_run
    from pipeline.settings import load_settings
    from pipeline.store import Store
    from pipeline.verdict_check import check_run

    found = Store(load_settings(store).store)
    report = find_run(found, run)
    checks = check_run(report, found)
    same = not any(check.differences for check in checks)
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "run": report.run,
                "same": same,
                "variants": [check.to_dict() for check in checks],
            }
        )
    else:
        rows = [
            [c.recipe, c.kept, c.computed or "cannot be computed", f"{c.answers:,}", words(c)]
            for c in checks
        ]
        print_table(["variant", "verdict kept", "computed again", "answers read", ""], rows)
        for check in checks:
            for difference in check.differences:
                print(f"{check.recipe}: {difference}")
    raise typer.Exit(ExitCode.PROMOTED if same else ExitCode.EXPECTED_ERROR)


def words(check: VariantCheck) -> str:
    """How it went, in a word."""
    count = len(check.differences)
    return "the same" if count == 0 else f"{count} differences" if count > 1 else "1 difference"

"""`prepare runs`: runs and their outcomes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption, StoreOption, option
from pipeline.cli.tables import end, print_ending, print_json, print_run, print_stages, print_table
from pipeline.cli.tune import print_tuning
from prepare.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from artifacts.run_record import RunReport
    from prepare.store import Store

POLL_INTERVAL_S = 1.0


def runs(
    run: Annotated[
        str | None,
        typer.Argument(help="Run id, its beginning, or 'latest'. Default: list all, newest last."),
    ] = None,
    follow: Annotated[
        bool, option("--follow", "Follow the run until it ends, and exit with its code.")
    ] = False,
    paths: Annotated[bool, option("--paths", "Name the folder of each stage.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs; show one, with its stages and evidence; or follow one of another process.

    A run may be on any machine that shares the store. Ctrl-C leaves a run that is followed
    alone. If its process was killed, the command reports it and exits with 1.

    Examples

      prepare runs

      prepare runs latest --json

      prepare runs latest --follow --store /shared/store

    Exit codes: 0 shown, 1 error, 2 usage; with --follow those of the run.
    """
    from artifacts.run_record import find_run
    from pipeline.environments.settings import load_settings

    opened = load_settings(store).open_store()
    if run is None and not (follow or paths):
        print_runs(opened, as_json=as_json)
        return
    report = find_run(opened, run or "latest")
    if follow:
        follow_run(report, store, opened, as_json=as_json)
    elif as_json:
        print(report.model_dump_json(indent=1))
    else:
        if report.tuning is None:
            print_run(report, is_shown=True)
        else:
            print_tuning(report)
            if report.tuning.verdict is None:
                print_ending(report, is_shown=True)
        for words in {variant.history.words for variant in report.variants if variant.history}:
            if words:
                print(words)
        print_stages(report, opened, paths=paths)


def print_runs(store: Store, *, as_json: bool) -> None:
    """Print a line for each run, newest last."""
    from artifacts.run_record import folders_by_start, read_run

    reports = []
    for folder in folders_by_start(store):
        try:
            reports.append(read_run(folder))
        except StoreError as error:  # one damaged record must not hide the others
            print(f"left out: {error}", file=sys.stderr)
    if not reports and not as_json:
        print(f"there is no run in {store.root} yet", file=sys.stderr)
        return
    if as_json:
        print_json(
            [r.model_dump(include={"run", "status", "exit_code", "seconds"}) for r in reports]
        )
        return
    rows = [
        [
            report.run,
            report.status,
            report.resolved.checkpoint,
            f"{report.tuning.winner or 'no candidate'}: {report.tuning.verdict}"
            if report.tuning is not None and report.tuning.verdict is not None
            else ", ".join(
                f"{variant.recipe}: {variant.short_verdict}" for variant in report.variants
            ),
            f"{report.seconds:.0f} s",
        ]
        for report in reports
    ]
    print_table(["run", "status", "checkpoint", "verdicts", "time"], rows)


def follow_run(report: RunReport, named: Path | None, store: Store, *, as_json: bool) -> None:
    """Print a run's notes until it ends; exit with its code.

    StoreError: its process was killed.
    """
    from artifacts.run_outcome import how_to_continue
    from artifacts.run_record import find_run
    from pipeline.cli.display import open_display

    told = 0
    with open_display(as_json=as_json) as progress:
        while True:
            for text in report.notes[told:]:
                progress.note(text)
            told = len(report.notes)
            if report.status != "running":
                break
            time.sleep(POLL_INTERVAL_S)
            report = find_run(store, report.run)
    if as_json:
        print(report.model_dump_json(indent=1))
    elif report.error is None and report.tuning is None:
        print_run(report)
    if report.status == "killed":
        raise StoreError(
            f"the run {report.run} ended without an outcome: it was killed, or the disk was full",
            where=str(store.root / "runs" / report.run),
            hint=how_to_continue(report),
        )
    end(report.error, report.exit_code or 0)

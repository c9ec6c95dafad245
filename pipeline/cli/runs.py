"""`prepare runs`: runs and their outcomes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JsonOption, RunArgument, StoreOption, option
from pipeline.cli.tables import print_ending, print_json, print_run, print_stages, print_table
from pipeline.cli.tuning_tables import print_tuning
from pipeline.core.errors import StoreError, from_dict
from pipeline.core.run_folders import RunFolders

if TYPE_CHECKING:
    from artifacts.run_record import RunReport

POLL_INTERVAL_S = 1.0

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Runs: what was done, and its evidence."
)


@app.command("list")
def list_runs(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List runs, newest last.

    Example

      prepare runs list
    """
    from artifacts.run_loader import read_run
    from pipeline.environments.settings import load_settings

    found = []
    for folder in RunFolders(load_settings(store).open_store()).all():
        try:
            found.append(read_run(folder))
        except StoreError as error:  # one damaged record must not hide the others
            print(f"left out: {error}", file=sys.stderr)
    if as_json:
        print_json([r.model_dump(include={"run", "status", "exit_code", "seconds"}) for r in found])
        return
    rows = [
        [
            report.run,
            report.status,
            report.options.checkpoint or "",
            ", ".join(verdicts_in(report)),
            f"{report.seconds:.0f} s",
        ]
        for report in found
    ]
    print_table(["run", "status", "checkpoint", "verdicts", "time"], rows)


def verdicts_in(report: RunReport) -> list[str]:
    """One row for each variant; for a tuning, for the winner."""
    if report.tuning is not None and report.tuning.verdict is not None:
        return [f"{report.tuning.winner or 'no candidate'}: {report.tuning.verdict}"]
    return [f"{variant.recipe}: {variant.verdict}" for variant in report.variants]


@app.command("show")
def show(
    run: RunArgument = "latest",
    paths: Annotated[bool, option("--paths", "Name the folder of each stage.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its table, stages and where the evidence is.

    Examples

      prepare runs show

      prepare runs show latest --json
    """
    from artifacts.run_loader import find_run
    from pipeline.environments.settings import load_settings

    found = load_settings(store).open_store()
    report = find_run(found, run)
    if as_json:
        print(report.model_dump_json(indent=1))
        return
    if report.tuning is not None:
        print_tuning(report, store)
        if report.tuning.verdict is None:
            print_ending(report, store, is_shown=True)
    else:
        print_run(report, store, is_shown=True)
    print_stages(report, found, paths=paths)


@app.command("attach")
def attach(
    run: RunArgument = "latest",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a run of another process until it ends, and exit with its code.

    It reads the run's record in the store, so the run may be on any machine that shares it.
    Ctrl-C leaves it alone. If the process of the run was killed, the command reports it
    and exits with 1.

    Examples

      sbatch --wrap "prepare model ./my-checkpoint --store /shared/store"

      prepare runs attach --store /shared/store
    """
    from artifacts.run_loader import find_run
    from artifacts.run_outcome import how_to_continue
    from pipeline.cli.display import open_display
    from pipeline.environments.settings import load_settings

    found = load_settings(store).open_store()
    report = find_run(found, run)
    told = 0
    with open_display(as_json=as_json) as progress:
        while True:
            for text in report.notes[told:]:
                progress.note(text)
            told = len(report.notes)
            if report.status != "running":
                break
            time.sleep(POLL_INTERVAL_S)
            report = find_run(found, report.run)
    if as_json:
        print(report.model_dump_json(indent=1))
    elif report.error is None and report.tuning is None:
        print_run(report, store)
    if report.error is not None:
        print(f"error: {from_dict(report.error)}", file=sys.stderr)
    if report.status == "killed":
        raise StoreError(
            f"the run {report.run} was killed",
            where=str(found.root / "runs" / report.run),
            hint=how_to_continue(report),
        )
    raise typer.Exit(report.exit_code or 0)


@app.command("attempts")
def list_attempts(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List every attempt so far, by baseline.

    An attempt is a set of variants that are tried together under one policy, or a gate
    of theirs measured again. It counts with the first answer or load of a candidate.

    Example

      prepare runs attempts
    """
    from pipeline.environments.settings import load_settings
    from pipeline.stages.attempts import AttemptLedger

    found = list(AttemptLedger(load_settings(store).open_store()).all())
    if as_json:
        print_json([attempt.model_dump(mode="json") for attempt in found])
        return
    rows = [
        [
            ", ".join(f"{name} {value[:12]}" for name, value in attempt.trial.baseline.items()),
            str(attempt.number),
            attempt.trial.policy,
            "" if attempt.trial.attempts is None else f"of {attempt.trial.attempts}",
            ", ".join(sorted(attempt.trial.variants)),
            ", ".join(f"{gate} ({number})" for gate, number in attempt.measured.items()),
            f"{attempt.trial.level:.2g}",
            attempt.run,
        ]
        for attempt in found
    ]
    headings = ["baseline", "attempt", "policy", "allowed", "variants", "again", "level", "run"]
    print_table(headings, rows)

"""`prepare runs`: what has been run, and how it went."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from pipeline.cli.options import JsonOption, RunArgument, StoreOption
from pipeline.cli.tables import print_json, print_run, print_stages, print_table
from pipeline.cli.tuning_tables import print_tuning
from pipeline.core.errors import StoreError, from_dict
from pipeline.core.run_folders import RunFolders

if TYPE_CHECKING:
    from artifacts.run_record import RunReport

SECONDS_BETWEEN_LOOKS = 1.0

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Runs: what was done, and its evidence."
)


@app.command("list")
def list_runs(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List runs, newest last.

    Example

      prepare runs list
    """
    from artifacts.kept_runs import read_run
    from pipeline.core.store import Store
    from pipeline.environments.settings import load_settings

    found = []
    for folder in RunFolders(Store(load_settings(store).store)).all():
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
    """Of each variant; of a tuning, of the race's winner."""
    if report.tuning is not None and report.tuning.verdict is not None:
        return [f"{report.tuning.winner or 'no candidate'}: {report.tuning.verdict}"]
    return [f"{variant.recipe}: {variant.verdict}" for variant in report.variants]


@app.command("show")
def show(
    run: RunArgument = "latest",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its table, stages and where the evidence is.

    Examples

      prepare runs show

      prepare runs show latest --json
    """
    from artifacts.kept_runs import find_run
    from pipeline.core.store import Store
    from pipeline.environments.settings import load_settings

    found = Store(load_settings(store).store)
    report = find_run(found, run)
    if as_json:
        print(report.model_dump_json(indent=1))
        return
    if report.tuning is not None:
        print_tuning(report)
    else:
        print_run(report)
    print_stages(report, found)


@app.command("attach")
def attach(
    run: RunArgument = "latest",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a run that goes on elsewhere until it ends, and exit as it did.

    What is read is its record in the store, so it may be on any machine that shares that.
    Ctrl-C leaves it alone. Of a run whose process was killed it says so, and exits with 1.

    Examples

      sbatch --wrap "prepare model ./my-checkpoint --store /shared/store"

      prepare runs attach --store /shared/store
    """
    from artifacts.kept_runs import find_run
    from pipeline.cli.display import open_display
    from pipeline.core.store import Store
    from pipeline.environments.settings import load_settings

    found = Store(load_settings(store).store)
    report = find_run(found, run)
    told = 0
    with open_display(as_json=as_json) as progress:
        while True:
            for text in report.notes[told:]:
                progress.note(text)
            told = len(report.notes)
            if report.status != "running":
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
            report = find_run(found, report.run)
    if as_json:
        print(report.model_dump_json(indent=1))
    elif report.error is None and report.tuning is None:
        print_run(report)
    if report.error is not None:
        print(f"error: {from_dict(report.error)}", file=sys.stderr)
    if report.status == "killed":
        raise StoreError(
            f"the run {report.run} was killed",
            where=str(found.root / "runs" / report.run),
            cure="the command that began it continues where it stopped",
        )
    raise typer.Exit(report.exit_code or 0)


@app.command("trials")
def list_trials(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List how much was tried so far, by baseline and policy.

    Each run that tries something new is a trial, and has a share of the policy's error
    rate: the later, the smaller. Another baseline, or a policy under another name, begins a
    count of its own.

    Example

      prepare runs trials
    """
    from artifacts.trials import Trials
    from eval_gates.statistics.multiplicity import share_of
    from pipeline.environments.settings import load_settings

    found = list(Trials(load_settings(store).store).latest())
    if as_json:
        print_json([trial.model_dump(mode="json") for trial in found])
        return
    rows = [
        [
            ", ".join(f"{name} {value[:32]}" for name, value in trial.count.baseline.items()),
            trial.count.policy,
            str(trial.number),
            f"{100 * share_of(trial.number + 1):.2g} %",
            trial.run,
        ]
        for trial in found
    ]
    print_table(["baseline", "policy", "trials", "share of the next", "last run"], rows)

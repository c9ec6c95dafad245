"""`prepare tune`: search for the fastest serving arguments of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artifacts.requests import TuneRequest
from pipeline.cli.display import open_display
from pipeline.cli.options import JsonOption, StoreOption, asks
from pipeline.cli.tables import end, print_table
from pipeline.cli.verify import is_version, registered_folder
from prepare.own_command import own_command

if TYPE_CHECKING:
    from artifacts.run_record import RunReport


@asks(TuneRequest)
def tune(request: TuneRequest, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Find the serving arguments that serve a declared load best, and confirm the gain.

    Candidates are screened at one load, each on its own server and added to the best so
    far. The winner is then measured against the engine's defaults, on fresh
    servers with fresh prompts, in a gate with an error rate. Only a confirmed gain
    gives a profile. `prepare model --profile` gates and promotes with it.

    Examples

      prepare tune demo:smollm2-135m --policy demo

      prepare tune ./my-checkpoint --workload support --candidates mine.yaml -o tuned.yaml

    Exit codes: 0 a tuned profile, 1 error, 2 usage, 3 unexpected error, 4 no gain,
    5 undecided, 130 interrupted.
    """
    from pipeline.environments.settings import load_settings
    from pipeline.run.tune import run_tune

    source = request.checkpoint
    if is_version(source):
        source = str(registered_folder(source, request.registry, store, None)[0])
    with open_display(as_json=as_json) as progress:
        report = run_tune(request, source, load_settings(store), progress)
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        print_tuning(report)
    end(report.error, report.exit_code or 0)


def print_tuning(report: RunReport) -> None:
    """Print screening, confirmation and the next step."""
    if (tuning := report.tuning) is None:
        return
    rows = [
        [
            candidate.name,
            f"{candidate.output_tokens_per_s:,.1f}"
            if candidate.output_tokens_per_s is not None
            else "",
            f"{candidate.ratio_to_defaults:.3f}" if candidate.ratio_to_defaults is not None else "",
            candidate.outcome,
            candidate.reason,
        ]
        for candidate in tuning.screening
    ]
    print_table(["candidate", "tokens/s", "of defaults", "", "why"], rows)
    if tuning.verdict is None:
        return
    print("the screening chose the winner; its numbers are no evidence")
    who = tuning.winner or "no candidate"
    print(f"{who} against the defaults under {tuning.workload}: {tuning.verdict}: {tuning.reason}")
    if tuning.profile is None:
        print("no gain is confirmed, so there is no tuned profile")
        return
    print(f"at least {tuning.min_gain:.3f} of the defaults' tokens/s; profile {tuning.profile}")
    print(f"Next: {own_command('model', *tuned_arguments(report))}")


def tuned_arguments(report: RunReport) -> list[str]:
    """Return the arguments of `prepare model` with the tuned profile."""
    tuning = report.tuning
    assert tuning is not None
    words = [report.request.subject]
    if report.request.subject != report.resolved.checkpoint:  # a registered version
        words = [f"SOURCE_OF_{report.request.subject}", "--recipe", "ITS_RECIPE"]
    return [*words, "--profile", str(tuning.profile)]

"""Tables of `prepare tune`: the screening, each lever's effect, and the confirmation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.cli.follow_up import given
from pipeline.cli.tables import print_table

if TYPE_CHECKING:
    from pathlib import Path

    from artifacts.run_record import RunReport
    from artifacts.tuning_report import ScreeningReport, TuningReport


def print_tuning(report: RunReport, store: Path | None) -> None:
    """Print the tables of a run of `prepare tune`, and the next step."""
    tuning = report.tuning
    if tuning is None:
        return
    headings = ["candidate", "parameter", "tokens/s", "of defaults", "repetitions", "", "why"]
    print_table(headings, [screening_row(each) for each in tuning.screening])
    for line in ending_lines(tuning, report, store):
        print(line)


def screening_row(each: ScreeningReport) -> list[str]:
    """One candidate; its numbers chose the winner, and are no evidence."""
    rate, over = each.output_tokens_per_s, each.ratio_to_defaults
    return [
        each.name,
        each.parameter.replace("_", " "),
        f"{rate:,.1f}" if rate is not None else "",
        f"{over:.3f}" if over is not None else "",
        str(each.repetitions or ""),
        each.outcome,
        each.reason,
    ]


def ending_lines(tuning: TuningReport, report: RunReport, store: Path | None) -> list[str]:
    """Print what was confirmed, and the next command."""
    if tuning.verdict is None:
        return []
    lines = ["the screening chose the winner; its numbers are no evidence"]
    who = tuning.winner or "no candidate"
    lines.append(
        f"{who} against the defaults under {tuning.workload}: {tuning.verdict}: {tuning.reason}"
    )
    if tuning.profile is None:
        return [*lines, "no gain is confirmed, so there is no tuned profile"]
    options = report.options
    checkpoint = options.checkpoint or "CHECKPOINT"
    if options.version:
        checkpoint = f"SOURCE_OF_{options.version} --recipe ITS_RECIPE"
    why = (
        "its arguments change answers" if tuning.requires_regate else "nothing is promoted ungated"
    )
    return [
        *lines,
        f"at least {tuning.min_gain:.3f} of the defaults' tokens/s; profile {tuning.profile}",
        f"Next ({why}): prepare model {checkpoint} --profile {tuning.profile}{given(store)}",
    ]

"""From verdicts on single variants to those that hold for all of them together."""

from __future__ import annotations

from artifacts.run_record import VariantReport
from pipeline.core.errors import ExitCode

# How a variant's reason continues where another one got the alias.
NOT_PREFERRED = "; registered, but "


def first_of_the_ladder(passed: list[VariantReport], rungs: tuple[str, ...]) -> list[VariantReport]:
    """Without the rungs that pass after the first that does.

    A rung is tried because none before it passed. More questions, or time, may pass one of those
    after all, and then that one goes first.
    """
    names = {report.recipe for report in passed}
    later = [rung for rung in rungs if rung in names][1:]
    return [report for report in passed if report.recipe not in later]


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """How a run ends by its variants' verdicts, with nothing left to do."""
    if "pass" in verdicts:
        return ExitCode.SUCCESS
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

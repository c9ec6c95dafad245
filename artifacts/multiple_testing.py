"""Verdicts on all variants together, from those on single variants."""

from __future__ import annotations

from artifacts.run_record import VariantReport
from pipeline.core.errors import ExitCode

# How a variant's reason continues where another one got the alias.
NOT_PREFERRED = "; registered, but "


def first_of_the_ladder(passed: list[VariantReport], rungs: tuple[str, ...]) -> list[VariantReport]:
    """Remove the rungs that pass after the first passing rung.

    With more questions or time, an earlier rung may pass after a later one.
    """
    names = {report.recipe for report in passed}
    later = [rung for rung in rungs if rung in names][1:]
    return [report for report in passed if report.recipe not in later]


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """Return a finished run's exit code from its variants' verdicts."""
    if "pass" in verdicts:
        return ExitCode.SUCCESS
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

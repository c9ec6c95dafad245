"""Verdicts on all variants together, from those on single variants."""

from __future__ import annotations

from pipeline.core.errors import ExitCode

# Ends a variant's reason if another one got the alias.
NOT_PREFERRED = "; registered, but "


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """Return a finished run's exit code."""
    if "pass" in verdicts:
        return ExitCode.SUCCESS
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

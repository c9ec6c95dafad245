"""Workflow commands of GitHub Actions: an annotation for each gate that did not pass.

The format, and what has to be escaped, is that of `toolkit/packages/core/src/command.ts`. GitHub
shows ten errors and ten warnings of a step, so a tenth that stands for more says how many.
"""

from __future__ import annotations

from typing import Literal

from artifacts.ci.case import Case, cases_of_run, show_tier
from artifacts.run_record import RunReport
from pipeline.core.untrusted.text import annotation_property, annotation_text, clip

Level = Literal["error", "warning"]
SHOWN_OF_A_LEVEL = 10
MAX_MESSAGE_CHARACTERS = 2000
"""Characters; more of it is in the JUnit file and in the summary."""


def annotation_lines(report: RunReport) -> list[str]:
    """Lines to print, errors first.

    An error is a gate that said no, or what could not be made, served or finished. A warning is a
    gate that could not be decided, an advisory one that said no, or a gain that looks too good.
    """
    lines: list[str] = []
    cases = cases_of_run(report)
    levels: tuple[Level, ...] = ("error", "warning")
    for level in levels:
        found = [annotation(level, case) for case in cases if level_of(case) == level]
        if len(found) > SHOWN_OF_A_LEVEL:
            left = len(found) - SHOWN_OF_A_LEVEL + 1
            more = command(level, "prepare", f"{left} more: the run's summary lists them")
            found = [*found[: SHOWN_OF_A_LEVEL - 1], more]
        lines += found
    return lines


def level_of(case: Case) -> Level | None:
    """How loud a case is; None for one that needs no word."""
    if case.outcome == "skipped":
        return None
    if case.outcome == "pass":
        return "warning" if case.suspicious else None
    return "error" if case.blocks and case.outcome != "undecided" else "warning"


def annotation(level: Level, case: Case) -> str:
    """The line for one case."""
    title = f"{case.variant}: {case.name}: {case.word}{show_tier(case.tier)}"
    return command(level, title, case.reason)


def command(level: Level, title: str, message: str) -> str:
    """One workflow command, on one line for any text."""
    shown = annotation_text(clip(message, MAX_MESSAGE_CHARACTERS))
    return f"::{level} title={annotation_property(title)}::{shown}"

"""GitHub Actions workflow commands: an annotation for each gate that did not pass.

Format and escapes follow `toolkit/packages/core/src/command.ts`. GitHub shows ten errors and ten
warnings per step; the tenth line counts the rest.
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
    """Return the lines to print, errors first.

    Errors: failed gates and runs. Warnings: undecided gates, failed advisory gates and suspiciously
    large gains.
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
    """Return a case's level; None if it needs no annotation."""
    if case.outcome == "skipped":
        return None
    if case.outcome == "pass":
        return "warning" if case.suspicious else None
    return "error" if case.blocks and case.outcome != "undecided" else "warning"


def annotation(level: Level, case: Case) -> str:
    """Return the line for one case."""
    title = f"{case.variant}: {case.name}: {case.word}{show_tier(case.tier)}"
    return command(level, title, case.reason)


def command(level: Level, title: str, message: str) -> str:
    """Return one workflow command on a single line."""
    shown = annotation_text(clip(message, MAX_MESSAGE_CHARACTERS))
    return f"::{level} title={annotation_property(title)}::{shown}"

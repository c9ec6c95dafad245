"""Outputs for later steps of a CI job: one `name=value` per line.

The format suits $GITHUB_OUTPUT and GitLab's dotenv reports: names have only letters and
underscores, and values have no line end.
"""

from __future__ import annotations

from artifacts.run_outcome import champion_of, list_passed, verdict_of
from artifacts.run_record import RunReport
from pipeline.core.untrusted.text import output_value

MAX_VALUE_CHARACTERS = 400
"""Characters. GitLab takes 5 KiB of a dotenv report in all."""


def outputs(report: RunReport, junit: str) -> str:
    """Return the lines of a finished run. All names are present, and unknown values are empty."""
    champion = champion_of(report)
    values = {
        "verdict": verdict_of(report),
        "exit_code": str(report.exit_code),
        "run": report.run,
        "passed": ",".join(list_passed(report)),
        "champion": champion.recipe if champion else "",
        "registry_name": report.registered_name or "",
        "registry_version": (champion.registry_version if champion else None) or "",
        "junit": junit,
    }
    return "".join(
        f"{name}={output_value(value, MAX_VALUE_CHARACTERS)}\n" for name, value in values.items()
    )

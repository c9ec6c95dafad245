"""Outputs for later steps of a CI job: one `name=value` a line.

The format suits GitHub's $GITHUB_OUTPUT and GitLab's dotenv reports: names have letters and
underscores only, and no value has a line end.
"""

from __future__ import annotations

from artifacts.run_outcome import champion_of, list_passed, verdict_of
from artifacts.run_record import RunReport
from pipeline.core.untrusted.text import output_value

MAX_VALUE_CHARACTERS = 400
"""Characters. GitLab takes 5 KiB of a dotenv report in all."""


def outputs(report: RunReport, junit: str) -> str:
    """Return the lines of an ended run, with the path of its JUnit file.

    All names are always present; a missing value is empty.
    """
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

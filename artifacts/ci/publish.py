"""Writes a run's CI reports to the files in the CI system's variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artifacts.ci.junit import junit_xml
from artifacts.ci.outputs import outputs
from artifacts.ci.summary import LARGEST_BYTES, markdown_summary
from artifacts.run_record import RunReport
from pipeline.core.store import write_atomically

SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUTS = "GITHUB_OUTPUT"


@dataclass(frozen=True)
class ReportPaths:
    """Paths of the reports, None for no report."""

    junit: Path | None
    summary: Path | None
    outputs: Path | None

    @classmethod
    def of(
        cls,
        environ: Mapping[str, str],
        junit: Path | None,
        outputs: Path | None,
    ) -> ReportPaths:
        """Return the paths of the variables; a user's path takes precedence."""
        return cls(
            junit=junit,
            summary=path_in(environ, SUMMARY),
            outputs=outputs or path_in(environ, OUTPUTS),
        )


def path_in(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the path in a variable, or None if it is unset or empty."""
    value = environ.get(name)
    return Path(value) if value else None


def publish(report: RunReport, places: ReportPaths, say: Callable[[str], None]) -> None:
    """Write all reports of a finished run; `say` receives the written files.

    `say` also receives write errors; they do not change the verdict.
    """
    written = ""
    if places.junit is not None:
        with report_failure(places.junit, say):
            places.junit.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(places.junit, junit_xml(report).decode("utf-8"))
            written = str(places.junit)
            say(f"JUnit report: {written}")
    if places.summary is not None:
        with report_failure(places.summary, say):
            # An earlier command of the same step may have taken some of the room.
            taken = places.summary.stat().st_size if places.summary.exists() else 0
            append(places.summary, markdown_summary(report, LARGEST_BYTES - taken))
    if places.outputs is not None:
        with report_failure(places.outputs, say):
            append(places.outputs, outputs(report, written))


@contextmanager
def report_failure(file: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Report a file that could not be written, and continue."""
    try:
        yield
    except OSError as error:
        say(f"warning: {file} could not be written: {error.strerror or error}")


def append(file: Path, text: str) -> None:
    """Append to a file, which may exist."""
    with file.open("a", encoding="utf-8") as open_file:
        open_file.write(text)

"""A command inside a CI job: detection, and reports of every outcome."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.cli.display import open_display
from pipeline.cli.options import PATH, setting
from pipeline.cli.tables import end, print_run
from prepare.errors import ExitCode, PrepareError
from prepare.interruption import is_interruption

if TYPE_CHECKING:
    from artifacts.requests import CommandRequest
    from artifacts.run_record import RunReport
    from pipeline.environments.settings import Settings
    from prepare.events import Progress

JUNIT_NAME = "prepare-junit.xml"
NO = ("", "0", "false", "no", "off")

CiOption = Annotated[
    bool | None,
    setting(
        "--ci/--no-ci",
        "Plain progress, a JUnit file, and on GitHub a summary and outputs. "
        "Default: where the variable CI is set to something true.",
    ),
]
JunitOption = Annotated[
    Path | None,
    setting(
        "--junit",
        f"The JUnit file to write. Default with --ci: {JUNIT_NAME} in the run's folder.",
        **PATH,
    ),
]
OutputsOption = Annotated[
    Path | None,
    setting(
        "--outputs",
        "Append verdict, run, champion and so on as name=value lines, as a dotenv report "
        "has them. Default with --ci: $GITHUB_OUTPUT.",
        **PATH,
    ),
]


def is_in_ci(said: bool | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is a CI job."""
    return environ.get("CI", "").strip().lower() not in NO if said is None else said


@dataclass(frozen=True)
class CiReporting:
    """A run's reports for CI."""

    request: CommandRequest
    ci: bool  # without one, only the files that were asked for are written
    junit: Path | None
    outputs: Path | None
    as_json: bool  # print for programs

    @contextmanager
    def opened(self, store: Path | None) -> Iterator[tuple[Settings, Progress]]:
        """Yield settings and progress of the command; report its error, and raise it."""
        from pipeline.environments.settings import load_settings

        with open_display(as_json=self.as_json, plain=self.ci) as progress:
            try:
                yield load_settings(store), progress
            except BaseException as error:
                self._publish(report_of(error, self.request), self.junit, progress)
                raise

    def finish(self, report: RunReport, settings: Settings, progress: Progress) -> NoReturn:
        """Publish the report, print it, and exit with its code; `progress` gets written files."""
        in_its_folder = settings.store / "runs" / report.run / JUNIT_NAME
        if report.exit_code is not None:  # else the main copy does
            self._publish(report, self.junit or (in_its_folder if self.ci else None), progress)
        if self.as_json:
            print(report.model_dump_json(indent=1))
        elif report.error is None:
            print_run(report)
        end(report.error, report.exit_code or 0)

    def _publish(self, report: RunReport, junit: Path | None, progress: Progress) -> None:
        if not (self.ci or junit or self.outputs):
            return
        from artifacts.ci import publish

        # Outside of a CI job, only files that were asked for are written.
        environ = os.environ if self.ci else {}
        publish(report, environ, junit, self.outputs, progress.note)


def report_of(error: BaseException, request: CommandRequest) -> RunReport:
    """Return the report of a command without one."""
    from datetime import UTC, datetime

    from artifacts.run_outcome import how_to_continue
    from artifacts.run_record import ResolvedOptions, RunReport
    from pipeline.run.run import RunInterrupted

    if isinstance(error, RunInterrupted):
        facts = interruption_facts(how_to_continue(error.report))
        return error.report.model_copy(update={"error": facts})
    code: int = ExitCode.UNEXPECTED
    error_facts: dict[str, str] = {
        "kind": type(error).__name__,
        "message": f"unexpected {type(error).__name__}: {error}",
        "where": "the job's log names the file with the traceback",
        "hint": "this is a defect of prepare; please report it with that file",
    }
    if isinstance(error, typer.Abort) or is_interruption(error):
        code = ExitCode.INTERRUPTED
        error_facts = interruption_facts("Run the same command again.")
    elif isinstance(error, PrepareError):
        code = error.exit_code
        error_facts = error.to_dict()
    return RunReport(
        run="",
        request=request,
        resolved=ResolvedOptions(checkpoint=request.subject),
        status="interrupted" if code == ExitCode.INTERRUPTED else "failed",
        exit_code=code,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0,
        checkpoint=None,
        variants=[],
        stages=[],
        notes=[],
        error=error_facts,
    )


def interruption_facts(hint: str) -> dict[str, str]:
    """Return an interruption as an error, not as success."""
    return {"kind": "Interrupted", "message": "interrupted", "where": "", "hint": hint}

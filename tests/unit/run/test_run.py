from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from listener import Listener
from loose_stage import stage_spec
from sample_reports import REQUEST, RESOLVED

from artifacts.requests import CommandRequest, GateRequest
from artifacts.run_record import find_run
from pipeline.environments.settings import Settings
from pipeline.run.run import Run, RunInterrupted
from prepare.errors import ExitCode, PrepareError, StoreError
from prepare.store import Store
from recipes.accelerator import Accelerator

GATE = GateRequest(baseline="http://a:1", candidate="http://b:1")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    made = Run(REQUEST, RESOLVED, Accelerator.CPU, settings, Listener())
    made.progress.note("begun")
    return made


def interrupted(error: Exception) -> Exception:
    error.__context__ = KeyboardInterrupt()
    return error


def ending(run: Run) -> tuple[str, int | None, list[str]]:
    kept = find_run(Store(run.settings.store), "latest")
    return kept.status, kept.exit_code, kept.notes


def test_an_error_becomes_part_of_the_record(run: Run) -> None:
    with run:
        raise StoreError("no room", where="there", hint="make some")
    report = run.log.report()
    assert report.error is not None
    assert report.error["message"] == "no room"
    assert ending(run) == ("failed", ExitCode.EXPECTED_ERROR, ["begun"])


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (StoreError("no"), "failed")]
)
def test_a_stage_that_the_user_interrupts_did_not_fail(
    run: Run, tmp_path: Path, error: BaseException, status: str
) -> None:
    def stop(*_: object) -> bool:
        raise error

    spec = stage_spec("judge", "fp8", {}, {}, {}, tmp_path)
    with patch.object(Run, "execute_stage", stop), pytest.raises(type(error)):
        run.run_stage(spec)
    (stage,) = find_run(Store(run.settings.store), "latest").stages
    assert stage.status == status


def test_a_full_disk_is_an_expected_error_wherever_it_is_met(run: Run) -> None:
    with run:
        raise OSError(errno.ENOSPC, "No space left on device", "/a/b")
    report = run.log.report()
    assert report.error is not None
    assert (report.error["message"], report.error["where"]) == ("the disk is full", "/a/b")
    assert ending(run) == ("failed", ExitCode.EXPECTED_ERROR, ["begun"])


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (KeyboardInterrupt(), "interrupted", ExitCode.INTERRUPTED),
        (interrupted(RuntimeError()), "interrupted", ExitCode.INTERRUPTED),
        (interrupted(StoreError("no")), "interrupted", ExitCode.INTERRUPTED),
        (ZeroDivisionError(), "failed", ExitCode.UNEXPECTED),
    ],
    ids=["interrupted", "while a class is made", "while something ends", "a defect"],
)
def test_anything_else_is_passed_on(
    run: Run, raised: BaseException, status: str, code: ExitCode
) -> None:
    expected = RunInterrupted if status == "interrupted" else type(raised)
    with pytest.raises(expected), run:
        raise raised
    assert ending(run) == (status, code, ["begun"])


@pytest.mark.parametrize(
    ("asked", "goes_on_by"),
    [
        (REQUEST, ""),
        (GATE, "--deployment-id {run}"),
        (replace(GATE, deployment_id="mine"), ""),
    ],
)
def test_an_interrupted_run_names_what_continues_it(
    tmp_path: Path, asked: CommandRequest, goes_on_by: str
) -> None:
    """A gate without a deployment id has answers under its run's id alone."""
    settings, listener = Settings(home=tmp_path / "home", store=tmp_path / "store"), Listener()
    run = Run(asked, RESOLVED, Accelerator.CPU, settings, listener)

    with pytest.raises(RunInterrupted) as caught, run:
        raise KeyboardInterrupt
    told = listener.notes[-1]
    assert goes_on_by.format(run=run.log.run_id) in told
    assert ("--deployment-id" in told) == bool(goes_on_by)
    assert caught.value.report.status == "interrupted"


def test_the_first_error_is_told_where_the_record_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(run.log, "finish", full)
    with run:
        raise PrepareError("the first")
    assert run.log.report().exit_code is None

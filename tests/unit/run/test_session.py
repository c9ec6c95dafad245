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
from pipeline.environments.environment import Accelerator
from pipeline.environments.settings import Settings
from pipeline.run.session import RunInterrupted, RunSession
from prepare.errors import ExitCode, PrepareError, StoreError
from prepare.store import Store

GATE = GateRequest(baseline="http://a:1", candidate="http://b:1")


@pytest.fixture
def session(tmp_path: Path) -> RunSession:
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    made = RunSession(REQUEST, RESOLVED, Accelerator.CPU, settings, Listener())
    made.progress.note("begun")
    return made


def interrupted(error: Exception) -> Exception:
    error.__context__ = KeyboardInterrupt()
    return error


def ending(session: RunSession) -> tuple[str, int | None, list[str]]:
    kept = find_run(Store(session.settings.store), "latest")
    return kept.status, kept.exit_code, kept.notes


def test_an_error_becomes_part_of_the_record(session: RunSession) -> None:
    def work() -> ExitCode:
        raise StoreError("no room", where="there", hint="make some")

    report = session.run(work)
    assert report.error is not None
    assert report.error["message"] == "no room"
    assert ending(session) == ("failed", ExitCode.EXPECTED_ERROR, ["begun"])


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (StoreError("no"), "failed")]
)
def test_a_stage_that_the_user_interrupts_did_not_fail(
    session: RunSession, tmp_path: Path, error: BaseException, status: str
) -> None:
    def stop(*_: object) -> bool:
        raise error

    spec = stage_spec("judge", "fp8", {}, {}, {}, tmp_path)
    with patch.object(type(session.stages), "do", stop), pytest.raises(type(error)):
        session.stages.run(spec)
    (stage,) = find_run(Store(session.settings.store), "latest").stages
    assert stage.status == status


def test_a_full_disk_is_an_expected_error_wherever_it_is_met(session: RunSession) -> None:
    def work() -> ExitCode:
        raise OSError(errno.ENOSPC, "No space left on device", "/a/b")

    report = session.run(work)
    assert report.error is not None
    assert (report.error["message"], report.error["where"]) == ("the disk is full", "/a/b")
    assert ending(session) == ("failed", ExitCode.EXPECTED_ERROR, ["begun"])


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
    session: RunSession, raised: BaseException, status: str, code: ExitCode
) -> None:
    def work() -> ExitCode:
        raise raised

    expected = RunInterrupted if status == "interrupted" else type(raised)
    with pytest.raises(expected):
        session.run(work)
    assert ending(session) == (status, code, ["begun"])


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
    session = RunSession(asked, RESOLVED, Accelerator.CPU, settings, listener)

    def work() -> ExitCode:
        raise KeyboardInterrupt

    with pytest.raises(RunInterrupted) as caught:
        session.run(work)
    told = listener.notes[-1]
    assert goes_on_by.format(run=session.log.run_id) in told
    assert ("--deployment-id" in told) == bool(goes_on_by)
    assert caught.value.report.status == "interrupted"


def test_the_first_error_is_told_where_the_record_cannot_be_written(
    session: RunSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    def work() -> ExitCode:
        monkeypatch.setattr(session.log, "finish", full)
        raise PrepareError("the first")

    assert session.run(work).exit_code is None

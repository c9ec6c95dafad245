from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_reports import REQUEST, RESOLVED, failed_variant_report, stage_report, variant_report
from small_disk import fill, small_disk

from artifacts.run_record import RunReport, find_run, read_run
from pipeline.run.recorder import RunRecorder
from prepare.errors import StoreError, UsageError
from prepare.store import ALIVE, RESERVE, RUN_RECORD, RunFolders, Store, is_alive
from recipes.checkpoints.source_info import SourceInfo


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def log(store: Store) -> RunRecorder:
    return RunRecorder(store, REQUEST, RESOLVED)


def on_disk(log: RunRecorder) -> dict[str, Any]:
    report = read_run(log.folder)
    assert report.model_dump(exclude={"seconds"}) == log.report().model_dump(exclude={"seconds"})
    assert report.seconds >= log.report().seconds
    reserve = {RESERVE} if report.status == "running" else set()
    assert {path.name for path in log.folder.iterdir()} == {RUN_RECORD, ALIVE, *reserve}
    data: dict[str, Any] = json.loads((log.folder / RUN_RECORD).read_text())
    return data


def test_a_run_is_on_disk_from_its_first_moment(store: Store, log: RunRecorder) -> None:
    data = on_disk(log)
    assert data["run"] == log.run_id == log.folder.name
    assert data["status"] == "running"
    assert data["exit_code"] is None
    assert data["request"] == REQUEST.to_dict()
    assert data["schema_version"] == 1
    assert RunFolders(store).all() == [log.folder]


def test_every_step_is_on_disk_once_it_is_told(log: RunRecorder) -> None:
    checkpoint = SourceInfo(ref="demo:smollm2-135m", digest="0" * 64)
    log.update(checkpoint=checkpoint, registered_name="smollm2-135m")
    assert on_disk(log)["checkpoint"] == checkpoint.model_dump()
    assert on_disk(log)["registered_name"] == "smollm2-135m"
    log.stage(stage_report(name="quantize"))
    log.stage(stage_report(name="verify", status="failed"))
    assert [stage["name"] for stage in on_disk(log)["stages"]] == ["quantize", "verify"]
    log.note("group size 64")
    assert on_disk(log)["notes"] == ["group size 64"]
    log.finish("finished", 4)
    data = on_disk(log)
    assert (data["status"], data["exit_code"], data["error"]) == ("finished", 4, None)
    assert data["seconds"] > 0


def test_what_another_copy_waited_for_and_found_done_does_not_run(log: RunRecorder) -> None:
    log.stage(stage_report(name="quantize", status="ran"))
    log.note_running(["fp8-dynamic: quantize"])
    log.stage(stage_report(name="quantize", status="reused"))
    data = on_disk(log)
    assert (len(data["stages"]), data["running"]) == (1, [])


def test_a_later_report_of_a_variant_takes_the_earliers_place(log: RunRecorder) -> None:
    log.note_variant(variant_report(promoted=False))
    log.note_variant(failed_variant_report())
    log.note_variant(variant_report(promoted=True))
    assert [(v["recipe"], v["promoted"]) for v in on_disk(log)["variants"]] == [
        ("fp8-dynamic", True),
        ("awq-w4a16", False),
    ]
    assert log.variants() == log.report().variants


RUN = """
import os, signal
from pathlib import Path
from pipeline.run.recorder import RunRecorder
from prepare.store import Store
from artifacts.requests import ModelRequest
from artifacts.run_record import ResolvedOptions
import sys

asked = ModelRequest(checkpoint="x")
log = RunRecorder(Store(Path(sys.argv[1])), asked, ResolvedOptions(checkpoint="x"))
if sys.argv[2] == "finished":
    log.finish("finished", 0)
print(log.run_id, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("end", "while_alive", "once_dead"),
    [("none", "running", "killed"), ("finished", "finished", "finished")],
)
def test_a_killed_run_does_not_look_as_if_it_ran(
    store: Store, end: str, while_alive: str, once_dead: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(store.root), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        run_id = child.stdout.readline().strip()
        [folder] = RunFolders(store).all()
        assert folder.name == run_id
        assert is_alive(folder) == (while_alive == "running")
        assert find_run(store, run_id).status == while_alive
        child.communicate("\n", timeout=20)
    assert child.returncode == -signal.SIGKILL
    assert not is_alive(folder)
    assert find_run(store, run_id).status == once_dead


def test_a_full_disk_is_explained(log: RunRecorder) -> None:
    # The record's neighbour, which is renamed into place, leads to where every write fails.
    temporary = log.folder / f".{RUN_RECORD}.{os.getpid()}"
    temporary.symlink_to("/dev/full")
    with pytest.raises(StoreError) as caught:
        log.note("x")
    assert "store" in caught.value.where
    temporary.unlink()
    log.note("there is space again")
    assert "there is space again" in on_disk(log)["notes"]


def test_the_outcome_is_written_to_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        log = RunRecorder(Store(tmp_path / "store"), REQUEST, RESOLVED)
        fill(tmp_path)
        with pytest.raises(StoreError, match="disk is full"):
            log.note("x" * 10_000)
        log.finish("failed", 1, StoreError("the disk is full"))
        report = read_run(log.folder)
        assert (report.status, report.exit_code) == ("failed", 1)


# --- finding ------------------------------------------------------------------------------------


@pytest.fixture
def three(store: Store) -> list[RunReport]:
    logs = [RunRecorder(store, REQUEST, RESOLVED) for _ in range(3)]
    for log in logs:
        log.finish("finished", 0)
    return [log.report() for log in logs]


def test_a_run_is_found_by_id_beginning_or_as_the_latest(
    store: Store, three: list[RunReport]
) -> None:
    for report in three:
        assert find_run(store, report.run) == report
    assert find_run(store, "latest") == three[-1]
    stray = RunFolders(store).make("19990101-000000-000000")
    (stray / RUN_RECORD).write_text(three[0].model_dump_json())
    assert find_run(store, "1999") == three[0]


def test_the_latest_run_is_the_last_that_began(store: Store) -> None:
    """A run may have a name, which letters sort behind dates."""
    for run_id in ("nightly", None):
        log = RunRecorder(store, REQUEST, RESOLVED, run_id=run_id)
        log.finish("finished", 0)
        assert find_run(store, "latest") == log.report()


def test_an_ambiguous_beginning_names_the_runs(store: Store, three: list[RunReport]) -> None:
    with pytest.raises(UsageError, match="'20'") as caught:
        find_run(store, "20")
    for report in three:
        assert report.run in caught.value.hint
    assert caught.value.where == str(store.root / "runs")

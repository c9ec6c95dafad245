from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from sample_reports import COMMAND, failed_variant_report, stage_report, variant_report

from artifacts.run_record import RunReport, find_run, read_run
from pipeline.core.errors import ServingError, StoreError, UsageError
from pipeline.core.private_files import write_atomically
from pipeline.core.store import ALIVE, RUN_RECORD, RunFolders, Store, is_alive
from pipeline.run.recorder import RecordingProgress, RunRecorder
from recipes.checkpoints.source_info import CheckpointReport


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def log(store: Store) -> RunRecorder:
    return RunRecorder(store, "model", dict(COMMAND))


def on_disk(log: RunRecorder) -> dict[str, Any]:
    report = read_run(log.folder)
    assert report.model_dump(exclude={"seconds"}) == log.report().model_dump(exclude={"seconds"})
    assert report.seconds >= log.report().seconds
    assert {path.name for path in log.folder.iterdir()} == {RUN_RECORD, ALIVE}
    data: dict[str, Any] = json.loads((log.folder / RUN_RECORD).read_text())
    return data


def test_a_run_is_on_disk_from_its_first_moment(store: Store, log: RunRecorder) -> None:
    data = on_disk(log)
    assert data["run"] == log.run_id == log.folder.name
    assert data["status"] == "running"
    assert data["exit_code"] is None
    assert data["command"] == COMMAND
    assert data["schema_version"] == 1
    assert RunFolders(store).all() == [log.folder]


def test_every_step_is_on_disk_once_it_is_told(log: RunRecorder) -> None:
    checkpoint = CheckpointReport(ref="demo:smollm2-135m", digest="0" * 64)
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


def test_running_stages_are_on_disk(log: RunRecorder) -> None:
    quantize = stage_report(name="quantize")
    log.note_running([f"{quantize.variant}: quantize", "baseline: screen"])
    log.stage(quantize)
    assert on_disk(log)["running"] == ["baseline: screen"]
    log.note_running(["baseline: evaluate mmlu"])
    log.stage(stage_report(name="screen", variant="baseline"))
    assert on_disk(log)["running"] == ["baseline: evaluate mmlu"]
    log.finish("finished", 0)
    assert on_disk(log)["running"] == []


def test_a_later_report_of_a_variant_takes_the_earliers_place(log: RunRecorder) -> None:
    log.note_variant(variant_report(promoted=False))
    log.note_variant(failed_variant_report())
    log.note_variant(variant_report(promoted=True))
    assert [(v["recipe"], v["promoted"]) for v in on_disk(log)["variants"]] == [
        ("fp8-dynamic", True),
        ("awq-w4a16", False),
    ]
    assert log.variants() == log.report().variants


def test_a_failed_run_keeps_its_error(log: RunRecorder) -> None:
    log.finish("failed", 1, ServingError("it died", where="server.log", hint="mend it"))
    assert on_disk(log)["error"] == {
        "kind": "ServingError",
        "message": "it died",
        "where": "server.log",
        "hint": "mend it",
    }


def test_what_is_said_aloud_is_passed_on_and_kept(log: RunRecorder) -> None:
    listener = Listener()
    progress = RecordingProgress(listener, log)
    progress.note("group size 64")
    progress.advance("evaluate", 1, 2, "questions")
    assert listener.notes == on_disk(log)["notes"] == ["group size 64"]
    assert listener.events == [("evaluate", 1, 2, "questions")]


def test_runs_that_start_together_have_folders_of_their_own(store: Store) -> None:
    runs = [RunRecorder(store, "model", dict(COMMAND)).run_id for _ in range(5)]
    assert [folder.name for folder in RunFolders(store).all()] == runs == sorted(set(runs))


RUN = """
import os, signal
from pathlib import Path
from pipeline.run.recorder import RunRecorder
from pipeline.core.store import Store
import sys

log = RunRecorder(Store(Path(sys.argv[1])), "model", {"checkpoint": "x"})
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


def test_the_time_of_a_run_goes_on(log: RunRecorder) -> None:
    """Its record is written when something happens, and may be an hour old."""
    begun = datetime.now(UTC) - timedelta(hours=1)
    record = on_disk(log) | {"started": begun.isoformat(timespec="seconds")}
    write_atomically(log.folder / RUN_RECORD, json.dumps(record))
    assert 3600 <= read_run(log.folder).seconds < 3660


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


# --- finding ------------------------------------------------------------------------------------


@pytest.fixture
def three(store: Store) -> list[RunReport]:
    logs = [RunRecorder(store, "model", dict(COMMAND)) for _ in range(3)]
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


def test_an_ambiguous_beginning_names_the_runs(store: Store, three: list[RunReport]) -> None:
    with pytest.raises(UsageError, match="'20'") as caught:
        find_run(store, "20")
    for report in three:
        assert report.run in caught.value.hint
    assert caught.value.where == str(store.root / "runs")


@pytest.mark.parametrize("name", ["2001", "latest-one", "/", "../runs"])
def test_an_unknown_run_names_the_newest(store: Store, three: list[RunReport], name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'") as caught:
        find_run(store, name)
    assert three[-1].run in caught.value.hint


def test_no_runs_at_all(store: Store) -> None:
    with pytest.raises(UsageError) as caught:
        find_run(store, "latest")
    assert caught.value.where == str(store.root / "runs")
    assert "prepare model" in caught.value.hint


@pytest.mark.parametrize("text", [None, "", "{}", '{"run": 1}'])
def test_a_missing_or_damaged_record_is_a_store_error(log: RunRecorder, text: str | None) -> None:
    path = log.folder / RUN_RECORD
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(StoreError) as caught:
        read_run(log.folder)
    assert caught.value.where == str(path)

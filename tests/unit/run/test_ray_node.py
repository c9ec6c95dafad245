"""What a Ray worker does with a work item on its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import InternalStageError, StoreError
from pipeline.core.remote_store import cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.stage_record import StageSpec
from pipeline.run.executors.ray import keep_log
from pipeline.run.executors.ray_node import LogTail, WorkItemFile, is_there, place_task, run

NO_STAGE = b'{"stage": "serving_task", "store": 1}'


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(REMOTE_STORE_VARIABLE, "")
    return f"file://{tmp_path}/bucket"


def task_in(folder: Path, content: bytes) -> WorkItemFile:
    return WorkItemFile(str(folder / "runs" / "r" / "stages" / "work.json"), content, 1)


def test_the_task_is_placed_and_its_log_is_sent_without_a_shared_folder(
    url: str, tmp_path: Path
) -> None:
    store = cache_folder(url, tmp_path)
    unknown = StageSpec(
        stage="none", variant="v", key="k", parameters={}, inputs={}, runtime={}, store=str(store)
    ).model_dump_json()
    task = task_in(store, unknown.encode())
    log = Path(task.path).with_suffix(".log")
    [*events, logged, code] = run("", task, str(log), {REMOTE_STORE_VARIABLE: url})
    assert code == InternalStageError.exit_code
    assert b"InternalStageError" in b"".join(e for e in events if isinstance(e, bytes))
    assert isinstance(logged, LogTail)
    assert logged.path == str(log)
    assert b"Traceback" in logged.content
    assert not Path(task.path).exists()


def test_nothing_is_placed_where_a_folder_is_shared(tmp_path: Path) -> None:
    task = task_in(tmp_path, NO_STAGE)
    Path(task.path).parent.mkdir(parents=True)
    sent = list(run("", task, str(Path(task.path).with_suffix(".log")), {}))
    assert sent[-1] == 2
    assert not Path(task.path).exists()


def test_a_copy_that_an_earlier_task_left_is_not_the_driver_s_file(tmp_path: Path) -> None:
    task = task_in(tmp_path, NO_STAGE)
    place_task(task)
    assert not is_there(task)
    written = Path(task.path).stat().st_mtime_ns
    assert is_there(WorkItemFile(task.path, NO_STAGE, written))
    assert not is_there(WorkItemFile(task.path, b"another", written))


def test_a_log_is_kept_inside_the_run_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    keep_log(LogTail(str(folder / "a.log"), b"text"), folder)
    keep_log(LogTail(str(tmp_path / "b.log"), b"text"), folder)
    keep_log(LogTail(str(folder / ".." / "c.log"), b"text"), folder)
    assert (folder / "a.log").read_bytes() == b"text"
    assert [path.name for path in tmp_path.glob("*.log")] == []


def test_a_full_disk_of_the_driver_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        keep_log(LogTail("/dev/full", b"text"), Path("/dev"))

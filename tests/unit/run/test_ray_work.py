"""What a node of Ray does with a piece of work, where it shares only an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import UnexpectedStageError
from pipeline.core.origin import cache_folder
from pipeline.core.origin_variable import ORIGIN
from pipeline.core.stage_record import StageSpec
from pipeline.run.executors.ray import SentLog, run_here

NO_STAGE = b'{"stage": "sitting", "store": 1}'


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(ORIGIN, "")
    return f"file://{tmp_path}/bucket"


def test_the_task_comes_and_the_logs_go_with_it(url: str, tmp_path: Path) -> None:
    store = cache_folder(url, tmp_path)
    task = store / "runs" / "r" / "stages" / "work.json"
    log = task.with_suffix(".log")
    log.parent.mkdir(parents=True)
    log.write_text("said before")
    unheard_of = StageSpec(
        stage="none", variant="v", key="k", parameters={}, inputs={}, runtime={}, store=str(store)
    ).model_dump_json()
    sent = list(run_here(str(task), unheard_of.encode(), str(log), {ORIGIN: url}))
    [*events, logged, code] = sent
    assert code == UnexpectedStageError.exit_code
    assert b"UnexpectedStageError" in b"".join(e for e in events if isinstance(e, bytes))
    assert isinstance(logged, SentLog)
    assert logged.path == str(log)
    assert b"Traceback" in logged.content
    assert b"said before" not in logged.content
    assert not task.exists()


def test_without_an_object_store_nothing_is_put_anywhere(tmp_path: Path) -> None:
    task = tmp_path / "runs" / "r" / "stages" / "work.json"
    task.parent.mkdir(parents=True)
    sent = list(run_here(str(task), NO_STAGE, str(task.with_suffix(".log")), {}))
    assert sent[-1] == 2
    assert not task.exists()

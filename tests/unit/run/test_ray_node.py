"""What our agent on a node of Ray does with a piece of work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipeline.core.errors import UnexpectedStageError
from pipeline.core.origin import cache_folder
from pipeline.core.origin_variable import ORIGIN
from pipeline.core.stage_record import StageSpec
from pipeline.run.executors.ray_logs import SentLog
from pipeline.run.executors.ray_node import NodeAgent, TaskFile, is_there, place_task

NO_STAGE = b'{"stage": "sitting", "store": 1}'


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(ORIGIN, "")
    return f"file://{tmp_path}/bucket"


@pytest.fixture(scope="module")
def agent() -> NodeAgent:
    return NodeAgent()


def task_in(folder: Path, content: bytes) -> TaskFile:
    return TaskFile(str(folder / "runs" / "r" / "stages" / "work.json"), content, 1)


def test_the_task_comes_and_the_logs_go_with_it(agent: NodeAgent, url: str, tmp_path: Path) -> None:
    store = cache_folder(url, tmp_path)
    unheard_of = StageSpec(
        stage="none", variant="v", key="k", parameters={}, inputs={}, runtime={}, store=str(store)
    ).model_dump_json()
    task = task_in(store, unheard_of.encode())
    log = Path(task.path).with_suffix(".log")
    log.parent.mkdir(parents=True)
    log.write_text("said before")
    [*events, logged, code] = agent.run("try", task, str(log), {ORIGIN: url})
    assert code == UnexpectedStageError.exit_code
    assert b"UnexpectedStageError" in b"".join(e for e in events if isinstance(e, bytes))
    assert isinstance(logged, SentLog)
    assert logged.path == str(log)
    assert b"Traceback" in logged.content
    assert b"said before" not in logged.content
    assert not Path(task.path).exists()


def test_without_an_object_store_nothing_is_put_anywhere(agent: NodeAgent, tmp_path: Path) -> None:
    task = task_in(tmp_path, NO_STAGE)
    Path(task.path).parent.mkdir(parents=True)
    sent = list(agent.run("try", task, str(Path(task.path).with_suffix(".log")), {}))
    assert sent[-1] == 2
    assert not Path(task.path).exists()


def test_what_is_to_end_before_it_came_is_not_done(agent: NodeAgent, tmp_path: Path) -> None:
    agent.end("late")
    assert list(agent.run("late", task_in(tmp_path, NO_STAGE), str(tmp_path / "log"), {})) == []


def test_what_is_ended_is_over_when_that_is_told(agent: NodeAgent, tmp_path: Path) -> None:
    task = task_in(tmp_path, b"")
    fifo = Path(task.path)
    fifo.parent.mkdir(parents=True)
    fifo.write_bytes(NO_STAGE)
    stopped = agent.run("stopped", task, str(tmp_path / "log"), {})
    next(stopped)  # it has begun
    ending = threading.Thread(target=agent.end, args=("stopped",))
    ending.start()
    codes = [sent for sent in stopped if isinstance(sent, int)]
    ending.join(30)
    assert not ending.is_alive()
    assert len(codes) == 1


def test_a_copy_that_an_earlier_agent_left_is_not_the_driver_s_file(tmp_path: Path) -> None:
    task = task_in(tmp_path, NO_STAGE)
    place_task(task)
    assert not is_there(task)
    written = Path(task.path).stat().st_mtime_ns
    assert is_there(TaskFile(task.path, NO_STAGE, written))
    assert not is_there(TaskFile(task.path, b"another", written))

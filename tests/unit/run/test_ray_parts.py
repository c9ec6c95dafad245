"""Parts of a server on other nodes end with the work that wanted them, and it ends with them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from pipeline.core.errors import ServingError
from pipeline.run.executors import ray_parts
from pipeline.run.executors.ray_parts import LostNodeError, RayParts


@dataclass
class Task:
    """Ends when it is told to, in one way or another."""

    file: Path
    node: int
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def follow(self, listener: Any) -> None:
        assert self.ended.wait(20)
        raise self.error or ServingError("cancelled")

    def cancel(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


class Work:
    """The work, and what it has on other nodes."""

    def __init__(self, folder: Path) -> None:
        self.tasks: list[Task] = []
        self.ended = threading.Event()
        file = folder / "fp8.sitting.json"
        self.parts = RayParts(file, self._submit, self.ended.set, Listener())  # type: ignore[arg-type]

    def _submit(self, file: Path, log: Path, node: int) -> Task:
        self.tasks.append(Task(file, node))
        return self.tasks[-1]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.setattr(ray_parts, "SECONDS_TO_END_TOO", 0.2)
    made = Work(tmp_path)
    yield made
    made.parts.end_all()


def test_each_other_node_has_a_file_of_its_own(work: Work) -> None:
    work.parts.begin("fp8", [{"port": 1}, {"port": 2}])
    assert [task.node for task in work.tasks] == [1, 2]
    assert [json.loads(task.file.read_text()) for task in work.tasks] == [{"port": 1}, {"port": 2}]
    work.parts.end("fp8")
    assert all(task.ended.is_set() for task in work.tasks)
    assert not work.ended.is_set()
    assert work.parts.failure is None


def test_two_servers_end_apart(work: Work) -> None:
    work.parts.begin("baseline", [{}])
    work.parts.begin("fp8", [{}])
    work.parts.end("baseline")
    assert [task.ended.is_set() for task in work.tasks] == [True, False]


def test_who_ends_all_while_they_begin_leaves_none(work: Work) -> None:
    ending = threading.Thread(target=work.parts.end_all)
    submit = work.parts._submit

    def cancelled_meanwhile(file: Path, log: Path, node: int) -> Any:
        if node == 1:
            ending.start()
            ending.join(0.2)
        return submit(file, log, node)

    work.parts._submit = cancelled_meanwhile
    work.parts.begin("fp8", [{}, {}])
    ending.join(10)
    assert len(work.tasks) == 2
    assert all(task.ended.is_set() for task in work.tasks)


def test_a_lost_node_ends_the_work_at_once(work: Work) -> None:
    work.parts.begin("fp8", [{}, {}])
    work.tasks[1].fail(LostNodeError())
    assert work.ended.wait(5)
    assert work.parts.is_one_lost


def test_a_part_that_fails_alone_ends_the_work_with_its_reason(work: Work) -> None:
    work.parts.begin("fp8", [{}])
    error = ServingError("out of memory")
    work.tasks[0].fail(error)
    assert work.ended.wait(5)
    assert work.parts.failure is error
    assert not work.parts.is_one_lost


def test_what_fails_because_the_work_has_says_nothing_more(work: Work) -> None:
    work.parts.begin("fp8", [{}, {}])
    work.tasks[0].fail(ServingError("connection closed by peer"))
    work.tasks[1].fail(LostNodeError())
    work.parts.wait_for_loss()
    assert work.parts.failure is None
    assert work.parts.is_one_lost  # which is why it failed

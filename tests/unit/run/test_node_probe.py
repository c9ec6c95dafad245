"""A node's description of itself, which another program may have written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from listener import Listener

from pipeline.core.errors import StageError
from pipeline.core.events import Progress
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors.node_probe import submit_description

ONE: Sequence[ResourceRequest] = [ResourceRequest()]


class Answering:
    """A node that answers as it likes."""

    def __init__(self, answer: Callable[[Path], object]) -> None:
        self._answer = answer

    def count_room(self, needs: ResourceRequest) -> int:
        return 1

    def find_room(self, needs: ResourceRequest) -> Answering:
        return self

    def submit(self, spec: Path, log: Path) -> Answering:
        self._answer(Path(json.loads(spec.read_text())["answer"]))
        return self

    def wait(self, listener: Progress) -> None:
        """It has answered."""

    def cancel(self) -> None:
        """There is nothing to end."""


@pytest.mark.parametrize(
    "answer",
    [
        lambda path: None,
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"cores": "many"}'),
        lambda path: path.write_text("null"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
)
def test_an_answer_that_is_none(tmp_path: Path, answer: Callable[[Path], object]) -> None:
    with pytest.raises(StageError, match="cannot be read"):
        submit_description(Answering(answer), ONE, tmp_path, Listener())  # type: ignore[arg-type]

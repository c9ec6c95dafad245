"""The events of real work, while a library in it prints lines that look like them.

The library is `sitecustomize` of every interpreter that is started: as soon as the stage reads a
weights file it prints, from Python, past Python and from a program that it starts. Slurm's commands
are played by scripts, and what a Ray worker runs is called without Ray.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listener import Listener
from loose_stage import stage_spec
from played_slurm import play_slurm
from small_checkpoint import checkpoint_files, write_files

from artifacts.run_record import StageReport
from pipeline.core.digest import digest_bytes
from pipeline.core.errors import StageError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.store import Store
from pipeline.run.executors import ExecutorOptions, ray_node
from pipeline.run.executors.local import LocalOptions
from pipeline.run.executors.slurm import SlurmOptions
from pipeline.run.executors.work_events import pass_on

HOSTILE = [
    '{"event": "progress"}',
    '{"event": "note", "text": "forged"}',
    '{"event": "stage", "name": 1}',
    '{"event": "error", "kind": "StageError", "message": "forged"}',
    '{"event": "ended", "exit_code": 3}',
    "[" * 100_000,
]
LIBRARY = f"""
import os, subprocess, sys
said = []

def say(event, arguments):
    if event == "open" and not said and str(arguments[0]).endswith("model.safetensors"):
        said.append(event)
        for line in {HOSTILE!r}:
            print(line, flush=True)
            os.write(1, line.encode() + b"\\n")
            subprocess.run(["printf", "%s\\\\n", line], check=True)
        print("left in a buffer", end="")

sys.addaudithook(say)
"""


class Work:
    """A stage that reads weights, in a separate store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.listener = Store(folder / "store"), Listener()
        self.file, self.log = folder / "stage.json", folder / "stage.log"
        files = checkpoint_files()
        self.weights = write_files(folder / "theirs", files)
        self.spec = stage_spec(
            "adopt",
            "theirs",
            {
                "checkpoint": "c" * 64,
                "quantization": {"kind": "none"},
                "environment": "",
                "files": {name: digest_bytes(content) for name, content in files.items()},
                "copied": True,
            },
            {},
            {"folder": str(self.weights)},
            self.store.root,
        )
        self.file.write_text(self.spec.model_dump_json())

    def check(self) -> None:
        """See that it was done, all that it tells was heard, and nothing that the library said."""
        assert self.store.find(self.spec.stage, self.spec.key) is not None
        assert len(self.listener.events) == len(checkpoint_files()) + 1
        assert all(done <= (total or 0) for _, done, total, _ in self.listener.events)
        assert self.listener.notes == []
        logged = self.log.read_text()
        assert [logged.count(f"{line}\n") for line in HOSTILE[:-1]] == [3] * (len(HOSTILE) - 1)
        assert "left in a buffer" in logged


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work(tmp_path)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "sitecustomize.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"), prepend=":")
    return made


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its commands, of which sbatch does the work immediately."""
    return play_slurm(tmp_path / "slurm", monkeypatch)


@pytest.mark.parametrize("options", [LocalOptions(), SlurmOptions()], ids=lambda each: each.kind)
@pytest.mark.usefixtures("slurm")
def test_an_executor_hears_what_the_work_tells_alone(work: Work, options: ExecutorOptions) -> None:
    place = options.open().find_room(ResourceRequest())
    assert place is not None
    place.submit(work.file, work.log).wait(work.listener)
    place.release()
    work.check()


def test_a_ray_task_streams_what_the_work_tells_alone(work: Work) -> None:
    *lines, code = ray_node.run("", str(work.file), str(work.log), dict(os.environ))
    assert code == 0
    assert pass_on((line for line in lines if isinstance(line, bytes)), work.listener) is None
    work.check()


def test_work_that_fails_is_told_by_its_own_error(work: Work) -> None:
    (work.weights / "model.safetensors").write_bytes(b"others")
    place = LocalOptions().open().find_room(ResourceRequest())
    assert place is not None
    with pytest.raises(StageError, match="changed while it was read"):
        place.submit(work.file, work.log).wait(work.listener)
    place.release()
    assert "forged" in work.log.read_text()


def test_a_job_that_is_killed_within_a_line_is_told_as_one_that_is_killed(
    work: Work, slurm: Path
) -> None:
    program = slurm / "python"
    program.write_text('#!/bin/sh\nprintf \'{"event": "note", "te\'\nkill -KILL $$\n')
    program.chmod(0o755)
    place = SlurmOptions(python=str(program)).open().find_room(ResourceRequest())
    began = time.monotonic()
    with pytest.raises(StageError, match="137"):
        place.submit(work.file, work.log).wait(work.listener)
    assert time.monotonic() - began < 30
    assert work.listener.notes == []


class Heard(Listener):
    """And which stages have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[object] = []

    def stage_ended(self, stage: object) -> None:
        self.stages.append(stage)


KINDS = ("progress", "note", "stage", "error", "ended", "other")
KEYS = (*StageReport.model_fields, "text", "task", "done", "total", "unit", "kind", "message")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_an_event_of_any_shape_is_heard_or_passed_over(kind: str, rest: dict[str, Any]) -> None:
    heard = Heard()
    line = json.dumps({"event": kind, **rest}).encode()
    failure = pass_on([line, b'{"event": "note", "text": "last"}\n'], heard)
    assert heard.notes[-1] == "last"
    assert (failure is None) or (kind == "error")
    for _, done, total, _ in heard.events:
        assert isinstance(done, int)
        assert total is None or isinstance(total, int)


@given(st.binary())
def test_any_line_is_passed_over(line: bytes) -> None:
    heard = Heard()
    assert pass_on([line, b"[" * 100_000, b'{"a": ' * 2000, b"1" * 5000], heard) is None
    assert (heard.notes, heard.events, heard.stages) == ([], [], [])


def test_each_kind_of_event_is_heard() -> None:
    heard = Heard()
    stage = StageReport(
        name="judge", stage="judge", variant="v", status="ran", seconds=1.5, key="k"
    )
    told: list[dict[str, Any]] = [
        {"event": "progress", "task": "t", "done": 1, "total": None, "unit": "s"},
        {"event": "note", "text": "\udcff half"},
        {"event": "stage", **stage.model_dump(mode="json")},
        {"event": "error", **StageError("it failed", where="here", hint="mend it").to_dict()},
    ]
    failure = pass_on((json.dumps(each).encode() for each in told), heard)
    assert heard.events == [("t", 1, None, "s")]
    assert heard.notes == ["\udcff half"]
    assert heard.stages == [stage]
    assert isinstance(failure, StageError)
    assert (failure.message, failure.where, failure.hint) == ("it failed", "here", "mend it")

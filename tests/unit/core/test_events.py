"""Events: one JSON line each, whole ones from several threads, and no error without a reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events import EVENTS_FD_VARIABLE, EventWriter, Progress

WORKER = """
from pipeline.core.events import worker_progress
progress = worker_progress()
progress.advance("evaluate", 3, 10, "questions")
progress.note("group size 64")
"""
EXPECTED = [
    {"event": "progress", "task": "evaluate", "done": 3, "total": 10, "unit": "questions"},
    {"event": "note", "text": "group size 64"},
]


def read_events(descriptor: int) -> list[dict[str, Any]]:
    """All events up to the end of the pipe, which is closed."""
    with os.fdopen(descriptor) as lines:
        return [json.loads(line) for line in lines]


def test_events_are_json_lines() -> None:
    read, write = os.pipe()
    progress: Progress = EventWriter(write)
    progress.advance("evaluate", 3, 10, "questions")
    progress.note("group size 64")
    progress.advance("load", 1, None)
    os.close(write)
    assert read_events(read) == [
        *EXPECTED,
        {"event": "progress", "task": "load", "done": 1, "total": None, "unit": ""},
    ]


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    read, write = os.pipe()
    EventWriter(write).note(text)
    os.close(write)
    assert read_events(read) == [{"event": "note", "text": text}]


def test_threads_do_not_break_into_each_others_lines() -> None:
    read, write = os.pipe()
    found: list[list[dict[str, Any]]] = []
    reader = threading.Thread(target=lambda: found.append(read_events(read)))
    reader.start()
    writer = EventWriter(write)
    # Longer than what the kernel writes to a pipe in one piece.
    texts = [str(number) * 9000 for number in range(4)]

    def write_often(text: str) -> None:
        for _ in range(20):
            writer.note(text)

    threads = [threading.Thread(target=write_often, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(write)
    reader.join()
    assert sorted(event["text"] for event in found[0]) == sorted(texts * 20)


def test_a_reader_that_went_away_does_not_stop_the_work() -> None:
    read, write = os.pipe()
    os.close(read)
    EventWriter(write).note("nobody reads this")
    os.close(write)


def test_a_worker_writes_to_the_descriptor_it_inherited() -> None:
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-c", WORKER],
        env={**os.environ, EVENTS_FD_VARIABLE: str(write)},
        pass_fds=[write],
        check=True,
    )
    os.close(write)
    assert read_events(read) == EXPECTED


def test_a_worker_started_by_hand_writes_to_standard_error() -> None:
    environment = {name: v for name, v in os.environ.items() if name != EVENTS_FD_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", WORKER], env=environment, capture_output=True, check=True
    )
    assert [json.loads(line) for line in done.stderr.splitlines()] == EXPECTED
    assert done.stdout == b""

"""A schedule in words: what is known of it, and what is not."""

from __future__ import annotations

import pytest

from pipeline.capacity.timeline import ScheduledTask, Timeline, play
from pipeline.cli.schedule_tables import (
    describe_needs,
    print_schedule,
    schedule_line,
    schedule_rows,
    shorten_list,
)
from pipeline.core.resource_request import ResourceRequest

ONE_GPU = ResourceRequest(gpus=1)


def timeline(*seconds: float | None) -> Timeline:
    pieces = [ScheduledTask(f"p{n}", ONE_GPU, each) for n, each in enumerate(seconds)]
    return play(pieces, lambda _: 2, 2)


def test_all_is_known() -> None:
    found = timeline(60, 90)
    assert schedule_rows(found) == [
        ["p0", "1 GPU", "", "p1", "0:00:00", "0:01:00"],
        ["p1", "1 GPU", "", "p0", "0:00:00", "0:01:30"],
    ]
    assert schedule_line(found) == (
        "on 2 GPUs: 0:01:30 (h:mm:ss), 2.5 GPU-minutes; at most 2 concurrent work items"
    )


def test_something_is_not_known() -> None:
    assert schedule_rows(timeline(60, None))[0][-2:] == ["-", "-"]
    line = schedule_line(timeline(60, None))
    assert "at least 0:01:00 (h:mm:ss), 1.0 GPU-minutes, and what has no time yet" in line
    assert "time not known yet" in schedule_line(timeline(None, None))


def test_nothing_is_left_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    print_schedule(timeline())
    print_schedule(None)
    assert capsys.readouterr().out == ""


def test_many_names() -> None:
    assert shorten_list(["a", "b", "c"]) == "a, b, c"
    assert shorten_list(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (ResourceRequest(gpus=8), "8 GPUs"),
        (ResourceRequest(gpus=1, exclusive=True), "1 GPU, the whole node"),
        (ResourceRequest(cpus="all"), "all cores"),
        (ResourceRequest(), "little"),
    ],
)
def test_what_a_work_item_needs(needs: ResourceRequest, words: str) -> None:
    assert describe_needs(needs) == words

"""The schedule played through in advance: what waits for what, and what it would take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.capacity.timeline import ScheduledTask, Timeline, play
from pipeline.core.resource_request import ResourceRequest

ONE_GPU, ALL, ALONE = (
    ResourceRequest(gpus=1),
    ResourceRequest(cpus="all"),
    ResourceRequest(gpus=1, exclusive=True),
)


def room_of(gpus: int, needs: ResourceRequest) -> int:
    """As a node with so many GPUs counts it."""
    if needs.gpus > gpus:
        return 0
    if needs.exclusive or needs.cpus == "all":
        return 1
    return gpus // needs.gpus if needs.gpus else 2


def timeline(*pieces: ScheduledTask, gpus: int = 0) -> Timeline:
    return play(pieces, lambda needs: room_of(gpus, needs), gpus)


def times(found: Timeline) -> dict[str, tuple[float, float]]:
    return {each.piece.name: (each.start, each.end) for each in found.placed}


def recipes(number: int, gpus: int) -> Timeline:
    """Each recipe takes 10 s on a GPU, then 20 s on one."""
    made = [ScheduledTask(f"make {n}", ONE_GPU, 10) for n in range(number)]
    asked = [ScheduledTask(f"ask {n}", ONE_GPU, 20, (f"make {n}",)) for n in range(number)]
    return timeline(*made, *asked, gpus=gpus)


@pytest.mark.parametrize(("gpus", "seconds"), [(1, 240), (2, 120), (4, 60), (8, 30), (16, 30)])
def test_recipes_share_gpus(gpus: int, seconds: float) -> None:
    found = recipes(8, gpus)
    assert found.wall_seconds == seconds
    assert found.gpu_minutes == 4
    assert found.max_concurrent == min(gpus, 8)


def test_what_waits_for_inputs_and_what_for_room() -> None:
    found = timeline(
        ScheduledTask("a", ALL, 5),
        ScheduledTask("b", ALL, 5),
        ScheduledTask("c", ResourceRequest(), 1, ("a",)),
    )
    assert times(found) == {"a": (0, 5), "b": (5, 10), "c": (5, 6)}
    waits = {each.piece.name: each.waits_for_room for each in found.placed}
    assert waits == {"a": False, "b": True, "c": False}
    b, c = found.placed[1:]
    assert (found.concurrent_with(b), found.concurrent_with(c)) == (["c"], ["b"])


def test_nothing_runs_beside_a_measurement_and_none_is_put_off_for_ever() -> None:
    flow = [ScheduledTask(f"f{n}", ONE_GPU, 10 + n) for n in range(4)]
    found = timeline(*flow, ScheduledTask("speed", ALONE, 5, ("f0",)), gpus=2)
    assert times(found) == {
        "f0": (0, 10),
        "f1": (0, 11),
        "f2": (10, 22),  # it was ready when that GPU became free, as the measurement was
        "speed": (22, 27),
        "f3": (27, 40),
    }
    assert found.concurrent_with(found.placed[-2]) == []


def test_little_work_runs_beside_all_but_a_measurement() -> None:
    little = [ScheduledTask(f"l{n}", ResourceRequest(), 1) for n in range(5)]
    found = timeline(
        ScheduledTask("speed", ALONE, 5), *little, ScheduledTask("all", ALL, 5), gpus=1
    )
    assert times(found)["speed"] == (0, 5)
    assert {each.start for each in found.placed[1:]} == {5}


def test_what_is_done_is_not_waited_for() -> None:
    found = timeline(ScheduledTask("b", ALL, 5, ("a, which is done",)))
    assert times(found) == {"b": (0, 5)}
    assert found.to_dict()["work"][0]["waits_for"] == []


def test_unknown_times_are_told_as_such() -> None:
    found = timeline(ScheduledTask("a", ONE_GPU, None), ScheduledTask("b", ONE_GPU, 10), gpus=2)
    plain = found.to_dict()
    assert (plain["wall_seconds"], plain["gpu_minutes"], plain["max_concurrent"]) == (None, None, 2)
    assert [each["starts_at_second"] for each in plain["work"]] == [None, None]
    assert plain["work"][0]["concurrent_with"] == ["b"]


def test_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="wide"):
        timeline(ScheduledTask("wide", ResourceRequest(gpus=4), 1), gpus=2)


def test_nothing_to_do() -> None:
    assert timeline().to_dict() == {
        **{"gpus": 0, "wall_seconds": 0.0, "gpu_minutes": 0.0, "max_concurrent": 0, "work": []},
        **{"wall_seconds_at_least": 0.0, "gpu_minutes_at_least": 0.0},
    }


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0, 1, 2, 3]), st.booleans(),
                          st.lists(st.integers(0, 30), max_size=3)), max_size=25))  # fmt: skip
def test_no_schedule_gives_more_than_there_is(
    drawn: list[tuple[int, int, bool, list[int]]],
) -> None:
    gpus = 3
    pieces = [
        ScheduledTask(
            str(number),
            ResourceRequest(gpus=wanted, exclusive=exclusive),
            seconds,
            tuple(str(n) for n in after if n < number),
        )
        for number, (seconds, wanted, exclusive, after) in enumerate(drawn)
    ]
    found = timeline(*pieces, gpus=gpus)
    assert sorted(each.piece.name for each in found.placed) == sorted(p.name for p in pieces)
    ends = {each.piece.name: each.end for each in found.placed}
    for each in found.placed:
        assert each.start >= max((ends[name] for name in each.piece.after), default=0)
        together = [
            o.piece.needs for o in found.placed if o.start <= each.start < o.end
        ]  # itself too
        assert sum(needs.gpus for needs in together) <= gpus
        assert len(together) == 1 or not any(needs.exclusive for needs in together)


def test_what_takes_memory_alone_is_little() -> None:
    found = timeline(
        ScheduledTask("a", ALL, 5), ScheduledTask("b", ResourceRequest(memory_bytes=10**8), 5)
    )
    assert times(found) == {"a": (0, 5), "b": (0, 5)}


def test_what_the_known_times_come_to_at_least() -> None:
    """The longest chain, or the GPUs' work shared evenly; what is not known counts nothing."""
    chain = (
        ScheduledTask("a", ONE_GPU, 60),
        ScheduledTask("b", ONE_GPU, None, ("a",)),
        ScheduledTask("c", ALL, 30, ("b",)),
    )
    found = timeline(*chain, gpus=2)
    assert (found.wall_seconds, found.gpu_minutes) == (None, None)
    assert (found.least_wall_seconds, found.least_gpu_minutes) == (90, 1)
    wide = [ScheduledTask(f"d{n}", ONE_GPU, 60) for n in range(4)]
    assert timeline(*chain, *wide, gpus=2).least_wall_seconds == 150


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(1, 99), st.sets(st.integers(0, 9)))),
    st.sets(st.integers(0, 9)),
)
def test_no_schedule_is_shorter_than_its_bound(
    drawn: list[tuple[int, float, set[int]]], unknown: set[int]
) -> None:
    whole = [
        ScheduledTask(
            str(n), ResourceRequest(gpus=gpus), seconds, tuple(str(m) for m in after if m < n)
        )
        for n, (gpus, seconds, after) in enumerate(drawn)
    ]
    some = [replace(p, seconds=None) if int(p.name) in unknown else p for p in whole]
    wall = timeline(*whole, gpus=3).wall_seconds
    assert wall is not None
    assert timeline(*some, gpus=3).least_wall_seconds <= wall * (1 + 1e-9)

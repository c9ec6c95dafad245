"""Which stages make one piece of work, what it needs, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.capacity.pending_work import PendingStage, Phase, expected_pieces
from pipeline.capacity.timeline import ScheduledTask
from pipeline.core.resource_request import ResourceRequest

GPU, LOADED = ResourceRequest(gpus=1), ResourceRequest(gpus=1, exclusive=True)


def stage(variant: str, name: str, *inputs: str, **more: Any) -> PendingStage:
    given = {"seconds": 10.0, "needs": GPU, **more}
    return PendingStage(f"{variant} {name}", variant, name, inputs=inputs, **given)


STAGES = [
    stage("suite", "questions", turn=Phase.SHARED, needs=ResourceRequest()),
    stage("a", "dry_run", turn=Phase.TRIED),
    stage("a", "quantize"),
    stage("a", "check", "a quantize", needs=ResourceRequest()),
    stage("baseline", "evaluate", server_run="asked"),
    stage("a", "evaluate", "a check", "baseline evaluate", server_run="asked"),
    stage("a", "speed", "a evaluate", "a check", server_run="asked", under_load=LOADED),
    stage("a", "evaluate 2", "a evaluate", server_run="asked again"),
    stage("a", "judge", "a evaluate 2", "a speed", "done before", needs=ResourceRequest()),
]
FIRST = {"suite: questions", "a: dry_run"}


def pieces(room: int) -> dict[str, ScheduledTask]:
    found = expected_pieces(STAGES, lambda needs: room, {"a": 5.0, "baseline": 7.0}.get)
    return {piece.name: piece for piece in found}


@pytest.mark.parametrize("room", [1, 2])
def test_each_waits_for_its_inputs_and_all_of_earlier_turns(room: int) -> None:
    after = {name: set(piece.after) for name, piece in pieces(room).items()}
    assert after["suite: questions"] == set()
    assert after["a: dry_run"] == {"suite: questions"}
    assert after["a: quantize"] == after["baseline: asked"] == FIRST
    assert after["a: check"] == FIRST | {"a: quantize"}
    assert after["a: asked"] == FIRST | {"a: check", "baseline: asked"}
    assert after["a: asked again"] == FIRST | {"a: asked"}


def test_where_one_is_asked_at_a_time_loads_are_part_of_it() -> None:
    found = pieces(1)
    assert found["a: asked"].needs == LOADED
    assert found["a: asked"].stages == ("evaluate", "speed")
    assert found["a: asked"].seconds == 5.0 + 10.0 + 10.0
    assert set(found["a: judge"].after) == FIRST | {"a: asked", "a: asked again"}


def test_where_several_are_they_go_apart() -> None:
    found = pieces(2)
    assert (found["a: asked"].needs, found["a: loads"].needs) == (GPU, LOADED)
    assert set(found["a: loads"].after) == FIRST | {"a: asked", "a: check"}
    assert found["a: loads"].seconds == 5.0 + 10.0
    assert found["baseline: asked"].seconds == 7.0 + 10.0
    assert (found["a: quantize"].seconds, found["a: quantize"].stages) == (10.0, ())


def test_loads_with_more_gpus_than_the_questions_go_apart() -> None:
    both = ResourceRequest(gpus=2)
    load = stage("a", "speed", "a evaluate", "a check", server_run="asked", under_load=both)
    stages = [load if each.name == "speed" else each for each in STAGES]
    found = {p.name: p for p in expected_pieces(stages, lambda needs: 2, {"a": 5.0}.get)}
    assert (found["a: asked"].needs, found["a: loads"].needs) == (GPU, both)


def test_what_is_made_comes_before_what_is_asked() -> None:
    names = list(pieces(2))
    assert names.index("a: judge") < names.index("baseline: asked") < names.index("a: asked")


def test_a_time_that_is_not_known_makes_the_whole_unknown() -> None:
    unknown = stage("a", "more", server_run="asked", seconds=None)
    found = expected_pieces([*STAGES, unknown], lambda needs: 1, lambda variant: 5.0)
    assert {piece.name for piece in found if piece.seconds is None} == {"a: asked"}
    found = expected_pieces(STAGES, lambda needs: 1, lambda variant: None)
    assert {p.name for p in found if p.seconds is None} == {n for n in pieces(1) if "asked" in n}

"""The pieces of work that stages come to, as a run would make them.

The rules are those of `runner.py` and `serving_planner.py` in `pipeline/run/`: shared stages, then
trials on two layers, then weights; a model's server and all who ask it are one piece, the
baseline's before the others'; loads are a piece of their own where several models could be asked
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pipeline.capacity.timeline import ScheduledTask
from pipeline.core.resource_request import ResourceRequest


class Phase(IntEnum):
    """Of a stage: each waits for all of an earlier one."""

    SHARED, TRIED, LATER = range(3)


@dataclass(frozen=True)
class PendingStage:
    """A stage that is still to run."""

    key: str
    variant: str
    name: str  # as people are told it
    seconds: float | None  # expected; None where it is not known
    needs: ResourceRequest  # of one that asks a model, for that model's server
    inputs: tuple[str, ...] = ()  # keys
    turn: Phase = Phase.LATER
    server_run: str = ""  # of the model's server that it asks, in words; "" where it asks none
    under_load: ResourceRequest | None = (
        None  # for both sides' servers, where it measures their speed
    )


def expected_pieces(
    stages: Sequence[PendingStage],
    count_room: Callable[[ResourceRequest], int],
    start_seconds: Callable[[str], float | None],
) -> list[ScheduledTask]:
    """What is more urgent first: making, and asking the variants before the baseline again.

    Args:
        stages: about in the order in which they run; an input that is not among them is done.
        count_room: how many such pieces fit side by side.
        start_seconds: that a variant's server takes to start; None where it is not known.
    """
    groups: dict[str, list[PendingStage]] = {}
    for each in sorted(stages, key=lambda stage: bool(stage.server_run)):
        is_apart = each.under_load is not None and count_room(each.needs) > 1
        what = "loads" if is_apart else each.server_run or each.name
        groups.setdefault(f"{each.variant}: {what}", []).append(each)
    made_by = {each.key: name for name, group in groups.items() for each in group}
    pieces = []
    for name, group in groups.items():
        first = group[0]
        inputs = (made_by.get(key, name) for each in group for key in each.inputs)
        earlier = (other for other in groups if groups[other][0].turn < first.turn)
        after = dict.fromkeys(each for each in (*inputs, *earlier) if each != name)
        seconds = [each.seconds for each in group]
        seconds += [start_seconds(first.variant)] if first.server_run else []
        known = [each for each in seconds if each is not None]
        pieces.append(
            ScheduledTask(
                name,
                next((each.under_load for each in group if each.under_load), first.needs),
                sum(known) if len(known) == len(seconds) else None,
                tuple(after),
                tuple(each.name for each in group) if len(group) > 1 else (),
            )
        )
    return pieces

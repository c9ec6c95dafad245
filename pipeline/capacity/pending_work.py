"""Groups pending stages into work items, as a run does.

The rules are those of `runner.py` and `serving_planner.py` in `pipeline/run/`. Shared stages come
first, then dry runs, then weights. A model's server and its clients are one work item, the
baseline's first. Loads are a separate item where several models could be served concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pipeline.capacity.timeline import ScheduledTask
from pipeline.core.resource_request import ResourceRequest


class Phase(IntEnum):
    """Order of stages: each waits for all stages of an earlier phase."""

    SHARED, TRIED, LATER = range(3)


@dataclass(frozen=True)
class PendingStage:
    """A stage that is still to run."""

    key: str
    variant: str
    name: str  # for people
    seconds: float | None  # expected; None if unknown
    needs: ResourceRequest  # of the server, for a stage that queries one
    inputs: tuple[str, ...] = ()  # keys
    turn: Phase = Phase.LATER
    server_run: str = ""  # label of the server run that it queries; "" if none
    under_load: ResourceRequest | None = None  # of both servers, if it measures speed


def expected_pieces(
    stages: Sequence[PendingStage],
    count_room: Callable[[ResourceRequest], int],
    start_seconds: Callable[[str], float | None],
) -> list[ScheduledTask]:
    """Return the work items, the most urgent first.

    Args:
        stages: roughly in run order; inputs that are not among them are done.
        count_room: number of such requests that fit concurrently.
        start_seconds: start time of a variant's server; None if unknown.
    """
    groups: dict[str, list[PendingStage]] = {}
    for each in sorted(stages, key=lambda stage: bool(stage.server_run)):
        load = each.under_load
        alone = load is not None and (load.exclusive or load.gpus > each.needs.gpus)
        is_apart = alone and count_room(each.needs) > 1
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

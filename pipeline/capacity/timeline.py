"""When each piece of a run's work would run: the schedule of a run, played through in advance.

A list schedule (Graham 1969): whenever something ends, what is ready starts in the order of the
list, where there is room. The room is as executors share it out: of a kind of work of which so many
fit side by side, each takes that share. One that needs the whole node, or several GPUs, is not
overtaken once it waits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.resource_request import ResourceRequest

LITTLE, ALONE = ResourceRequest(), ResourceRequest(exclusive=True)
ROUNDING = 1e-9
UNKNOWN_SECONDS = 60.0  # where nothing at all was measured, to say what would run next to what


@dataclass(frozen=True)
class ScheduledTask:
    """One stage, or one model's server with the stages that ask it."""

    name: str
    needs: ResourceRequest
    seconds: float | None  # expected; None where it is not known
    after: tuple[str, ...] = ()  # names of the pieces that must be done before
    stages: tuple[str, ...] = ()  # what is in it, where that is more than itself


@dataclass(frozen=True)
class TimelineEntry:
    """A piece of work with its time; seconds count from the run's start."""

    piece: ScheduledTask
    ready: float  # when all that it waits for is done
    start: float  # when there is room, too
    end: float

    @property
    def waits_for_room(self) -> bool:
        """Whether others have what it needs when it could start."""
        return self.start > self.ready


@dataclass(frozen=True)
class Timeline:
    """The pieces of a run, in the order in which they start."""

    placed: tuple[TimelineEntry, ...]
    gpus: int  # that there are
    is_measured: bool  # whether all times are expected ones; else some are made up

    @property
    def wall_seconds(self) -> float | None:
        """From the first start to the last end; None where a time is not known."""
        return max((each.end for each in self.placed), default=0.0) if self.is_measured else None

    @property
    def gpu_minutes(self) -> float | None:
        """Minutes of all pieces, times the GPUs that each takes; None as for the wall time."""
        return self.least_gpu_minutes if self.is_measured else None

    @property
    def least_wall_seconds(self) -> float:
        """The wall time; where not all times are known, what the known ones alone come to.

        That is the longest chain of pieces that wait for each other, or the work of all GPUs shared
        out evenly: no schedule is shorter (Graham 1969).
        """
        if self.wall_seconds is not None:
            return self.wall_seconds
        ends: dict[str, float] = {}
        for each in self.placed:
            begin = max((ends[name] for name in each.piece.after), default=0.0)
            ends[each.piece.name] = begin + (each.piece.seconds or 0.0)
        shared = 60 * self.least_gpu_minutes / self.gpus if self.gpus else 0.0
        return max(shared, *ends.values(), 0.0)

    @property
    def least_gpu_minutes(self) -> float:
        """Minutes of the pieces whose time is known, times the GPUs that each takes."""
        seconds = (e.piece.needs.gpus * (e.piece.seconds or 0) for e in self.placed)
        return sum(seconds) / 60

    @property
    def most_at_once(self) -> int:
        """How many pieces run side by side at most."""
        return max((len(self.concurrent_with(each)) + 1 for each in self._starting()), default=0)

    def concurrent_with(self, placed: TimelineEntry) -> list[str]:
        """Names of what runs when it starts, or starts with it."""
        return [
            other.piece.name
            for other in self.placed
            if other is not placed and other.start <= placed.start < other.end
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        known = self.is_measured
        return {
            "gpus": self.gpus,
            "wall_seconds": self.wall_seconds,
            "gpu_minutes": self.gpu_minutes,
            "wall_seconds_at_least": self.least_wall_seconds,
            "gpu_minutes_at_least": self.least_gpu_minutes,
            "most_at_once": self.most_at_once,
            "work": [
                {
                    "name": each.piece.name,
                    "stages": list(each.piece.stages),
                    "needs": each.piece.needs.model_dump(),
                    "expected_seconds": each.piece.seconds,
                    "waits_for": list(each.piece.after),
                    "waits_for_room": each.waits_for_room,
                    "starts_at_second": each.start if known else None,
                    "ends_at_second": each.end if known else None,
                    "concurrent_with": self.concurrent_with(each),
                }
                for each in self.placed
            ],
        }

    def _starting(self) -> list[TimelineEntry]:
        return [each for each in self.placed if each.end > each.start]


def play(
    pieces: Sequence[ScheduledTask], count_room: Callable[[ResourceRequest], int], gpus: int = 0
) -> Timeline:
    """When each of the pieces would run.

    A piece of unknown length takes the median of the others, and the timeline says no times.

    Args:
        pieces: what is more urgent first; each after all that it waits for, which may be pieces
            that are not there, since they are done.
        count_room: how many such pieces fit side by side; 0 where none does.
        gpus: that there are, for the record.

    Raises:
        ValueError: a piece needs more than there is, or waits for itself.
    """
    known = [piece.seconds for piece in pieces if piece.seconds is not None]
    stand_in = statistics.median(known) if known else UNKNOWN_SECONDS
    places = {piece.name: place for place, piece in enumerate(pieces)}
    waiting = [replace(p, after=tuple(n for n in p.after if n in places)) for p in pieces]
    running: list[TimelineEntry] = []
    done: dict[str, TimelineEntry] = {}
    now = 0.0
    while waiting or running:
        for piece, ready in _startable(waiting, running, done, now, count_room):
            waiting.remove(piece)
            seconds = stand_in if piece.seconds is None else piece.seconds
            running.append(TimelineEntry(piece, ready, now, now + seconds))
        if not running:
            raise ValueError(f"this never runs: {', '.join(piece.name for piece in waiting)}")
        now = min(each.end for each in running)
        for over in [each for each in running if each.end == now]:
            running.remove(over)
            done[over.piece.name] = over
    placed = sorted(done.values(), key=lambda each: (each.start, places[each.piece.name]))
    return Timeline(tuple(placed), gpus, len(known) == len(pieces))


def _startable(
    waiting: Sequence[ScheduledTask],
    running: Sequence[TimelineEntry],
    done: Mapping[str, TimelineEntry],
    now: float,
    count_room: Callable[[ResourceRequest], int],
) -> list[tuple[ScheduledTask, float]]:
    """What is ready, since when, and finds room; nothing overtakes a large one that waits."""
    ready = [
        (piece, max((done[name].end for name in piece.after), default=0.0))
        for piece in waiting
        if all(name in done for name in piece.after)
    ]
    running_items = [each.piece.needs for each in running]
    found: list[tuple[ScheduledTask, float]] = []
    # A large one that could not start before keeps back also what comes earlier in the list.
    for piece, since in sorted(
        ready, key=lambda each: not (_is_large(each[0].needs) and each[1] < now)
    ):
        if _has_room(piece.needs, running_items, count_room):
            found.append((piece, since))
            running_items.append(piece.needs)
        elif _is_large(piece.needs):
            break
    return found


def _is_large(needs: ResourceRequest) -> bool:
    return needs.exclusive or needs.gpus > 1


def _is_little(needs: ResourceRequest) -> bool:
    return needs.model_copy(update={"memory_bytes": 0}) == LITTLE


def _has_room(
    needs: ResourceRequest,
    running_items: Sequence[ResourceRequest],
    count_room: Callable[[ResourceRequest], int],
) -> bool:
    """Whether it can start while those run: what needs little always, but on a node taken whole."""
    together = [*running_items, needs]
    if count_room(ALONE) == 1 and running_items and any(each.exclusive for each in together):
        return False
    return _is_little(needs) or sum(_share(each, count_room) for each in together) <= 1 + ROUNDING


def _share(needs: ResourceRequest, count_room: Callable[[ResourceRequest], int]) -> float:
    """Of all the room that there is, what such a piece takes."""
    if _is_little(needs):
        return 0.0
    return 1 / room if (room := count_room(needs)) else float("inf")

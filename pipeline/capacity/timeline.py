"""Simulated schedule of a run's work items.

A list schedule (Graham 1969): when an item ends, ready items start in list order while resources
last. If n items of a kind fit concurrently, each takes 1/n of the node. No item overtakes a waiting
item that needs the full node or several GPUs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.resource_request import ResourceRequest

LITTLE, ALONE = ResourceRequest(), ResourceRequest(exclusive=True)
ROUNDING = 1e-9
UNKNOWN_SECONDS = 60.0  # without any measurement, so that concurrency is still shown


@dataclass(frozen=True)
class ScheduledTask:
    """One stage, or one model's server with the stages that query it."""

    name: str
    needs: ResourceRequest
    seconds: float | None  # expected; None if unknown
    after: tuple[str, ...] = ()  # names of its dependencies
    stages: tuple[str, ...] = ()  # its stages, if there are several


@dataclass(frozen=True)
class TimelineEntry:
    """A work item with its times, in seconds from the run's start."""

    piece: ScheduledTask
    ready: float  # all dependencies are done
    start: float  # resources are free
    end: float

    @property
    def waits_for_room(self) -> bool:
        """Whether resources were busy when the item became ready."""
        return self.start > self.ready


@dataclass(frozen=True)
class Timeline:
    """The work items of a run in start order."""

    placed: tuple[TimelineEntry, ...]
    gpus: int
    is_measured: bool  # whether all durations are known; otherwise some are assumed

    @property
    def wall_seconds(self) -> float | None:
        """Seconds from the first start to the last end; None if a duration is unknown."""
        return max((each.end for each in self.placed), default=0.0) if self.is_measured else None

    @property
    def gpu_minutes(self) -> float | None:
        """GPU minutes of all items; None if a duration is unknown."""
        return self.least_gpu_minutes if self.is_measured else None

    @property
    def least_wall_seconds(self) -> float:
        """The wall time, or a lower bound if durations are unknown.

        The bound is the longest dependency chain, or all GPU work divided evenly (Graham 1969).
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
        """GPU minutes of the items whose duration is known."""
        seconds = (e.piece.needs.gpus * (e.piece.seconds or 0) for e in self.placed)
        return sum(seconds) / 60

    @property
    def max_concurrent(self) -> int:
        """Maximum number of concurrent items."""
        return max((len(self.concurrent_with(each)) + 1 for each in self._starting()), default=0)

    def concurrent_with(self, placed: TimelineEntry) -> list[str]:
        """Return the names of items that run when this one starts."""
        return [
            other.piece.name
            for other in self.placed
            if other is not placed and other.start <= placed.start < other.end
        ]

    def to_dict(self) -> dict[str, Any]:
        known = self.is_measured
        return {
            "gpus": self.gpus,
            "wall_seconds": self.wall_seconds,
            "gpu_minutes": self.gpu_minutes,
            "wall_seconds_at_least": self.least_wall_seconds,
            "gpu_minutes_at_least": self.least_gpu_minutes,
            "max_concurrent": self.max_concurrent,
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
    """Simulate the schedule.

    An item of unknown duration takes the median of the others, and the timeline reports no times.

    Args:
        pieces: the most urgent first, each after its dependencies; missing dependencies are done.
        count_room: number of such items that fit concurrently; 0 if none.
        gpus: number of GPUs, for the record.

    Raises:
        ValueError: an item needs more than there is, or waits for itself.
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
    """Return the items that can start, with the time since when each is ready."""
    ready = [
        (piece, max((done[name].end for name in piece.after), default=0.0))
        for piece in waiting
        if all(name in done for name in piece.after)
    ]
    running_needs = [each.piece.needs for each in running]
    found: list[tuple[ScheduledTask, float]] = []
    # A waiting large item also holds back items that are earlier in the list.
    for piece, since in sorted(
        ready, key=lambda each: not (_is_large(each[0].needs) and each[1] < now)
    ):
        if _has_room(piece.needs, running_needs, count_room):
            found.append((piece, since))
            running_needs.append(piece.needs)
        elif _is_large(piece.needs):
            break
    return found


def _is_large(needs: ResourceRequest) -> bool:
    return needs.exclusive or needs.gpus > 1


def _is_little(needs: ResourceRequest) -> bool:
    return needs.model_copy(update={"memory_bytes": 0}) == LITTLE


def _has_room(
    needs: ResourceRequest,
    running_needs: Sequence[ResourceRequest],
    count_room: Callable[[ResourceRequest], int],
) -> bool:
    """Return whether the item can start; a small item waits only for an exclusive one."""
    together = [*running_needs, needs]
    if count_room(ALONE) == 1 and running_needs and any(each.exclusive for each in together):
        return False
    return _is_little(needs) or sum(_share(each, count_room) for each in together) <= 1 + ROUNDING


def _share(needs: ResourceRequest, count_room: Callable[[ResourceRequest], int]) -> float:
    """Return the fraction of the node that an item takes."""
    if _is_little(needs):
        return 0.0
    return 1 / room if (room := count_room(needs)) else float("inf")

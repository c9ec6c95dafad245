"""Tables of a run's simulated schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pipeline.cli.tables import print_table

if TYPE_CHECKING:
    from pipeline.capacity.timeline import Timeline
    from pipeline.core.resource_request import ResourceRequest

MAX_NAMES = 3


def print_schedule(timeline: Timeline | None) -> None:
    """Print concurrent work and the total time; nothing if nothing is to do."""
    if timeline is None or not timeline.placed:
        return
    print_table(["work", "needs", "waits for", "next to", "from", "to"], schedule_rows(timeline))
    print(schedule_line(timeline))


def schedule_rows(timeline: Timeline) -> list[list[str]]:
    """One row per work item."""
    known = timeline.is_measured
    return [
        [
            each.piece.name,
            describe_needs(each.piece.needs),
            shorten_list([*["room"] * each.waits_for_room, *each.piece.after]),
            shorten_list(timeline.concurrent_with(each)),
            clock(each.start) if known else "-",
            clock(each.end) if known else "-",
        ]
        for each in timeline.placed
    ]


def schedule_line(timeline: Timeline) -> str:
    """Describe the total time with the available resources, or its lower bound."""
    gpus = timeline.gpus
    on = f"on {gpus} GPU{'s' * (gpus != 1)}" if gpus else "on this machine"
    return (
        f"{on}: {describe_time(timeline)}; at most {timeline.max_concurrent} concurrent work items"
    )


def describe_time(timeline: Timeline) -> str:
    """Describe the wall time, and GPU-minutes if GPUs are used."""
    wall, minutes = timeline.least_wall_seconds, timeline.least_gpu_minutes
    if not wall and not timeline.is_measured:
        return "time not known yet"
    words = f"{clock(wall)} (h:mm:ss)" + f", {minutes:.1f} GPU-minutes" * bool(minutes)
    return words if timeline.is_measured else f"at least {words}, and what has no time yet"


def describe_needs(needs: ResourceRequest) -> str:
    """Describe a work item's resources."""
    gpus = f"{needs.gpus} GPU{'s' * (needs.gpus > 1)}"
    words = [gpus] if needs.gpus else []
    words += ["the whole node"] if needs.exclusive else ["all cores"] * (needs.cpus == "all")
    words += [f"{needs.memory_bytes / 1e9:.1f} GB"] * bool(needs.memory_bytes)
    return ", ".join(words) or "little"


def shorten_list(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))

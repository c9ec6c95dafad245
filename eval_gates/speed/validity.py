"""Handling of each fault of a load, as docs/how-to/performance-gates.md shows it.

A void block or round counts for neither side: for a pass as one below the claim, for a fail as one
above it. Both bets count sides alone, so each has at most the evidence that it would have without
the fault. Hence faults that hit one side, or slow blocks, more often give nobody a further chance:
the error rates hold whatever a fault depends on. The price is power, which further blocks buy back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from eval_gates.speed.invalid_reasons import FaultKind, InvalidReason

Effect = Literal["bounded", "void", "measured on", "ends"]


@dataclass(frozen=True)
class Handling:
    """What a kind of fault does, by what is judged."""

    ratio: Effect
    limits: Effect
    lasting: int = 0
    """Where so many units have it from the first on, it is no disturbance: measuring stops for this
    run, and in each further run after so many more. 0: never."""


HANDLING: Mapping[FaultKind, Handling] = {
    "client_lag": Handling("bounded", "void"),
    "too_short": Handling("void", "void", lasting=6),
    "too_few": Handling("void", "void"),
    "throttled": Handling("void", "void"),
    "other_process": Handling("void", "void"),
    "failed_requests": Handling("void", "void", lasting=3),
    "hit_rate": Handling("void", "void", lasting=3),
    "drift": Handling("measured on", "measured on"),
    "no_counter": Handling("ends", "ends"),
    "acceptance": Handling("ends", "ends"),
    "own_cache": Handling("ends", "ends"),
    "unlike": Handling("ends", "ends"),
}


def ending(causes: Iterable[InvalidReason]) -> tuple[InvalidReason, ...]:
    """The faults that end a measurement: the workload or engine is not what the gate describes."""
    return tuple(each for each in causes if HANDLING[each.kind].limits == "ends")


def lasting(of_units: list[list[InvalidReason]], runs: int) -> bool:
    """Whether each of the first units has the same lasting fault.

    Args:
        of_units: the faults of each unit, in the order of measuring.
        runs: that measured.
    """
    for kind, handling in HANDLING.items():
        has = [any(each.kind == kind for each in faults) for faults in of_units]
        first = has.index(False) if False in has else len(has)
        if handling.lasting and first >= handling.lasting * runs:
            return True
    return False

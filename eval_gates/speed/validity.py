"""Effects of invalid loads on the measurement (docs/explanation/performance-statistics.md).

A void unit counts against both bets: as a failing unit for the pass, as a passing unit for the
fail. Each bet then has at most the evidence that it would have without the fault. Error rates
therefore hold for any cause of faults; the cost is power.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from eval_gates.speed.invalid_reasons import FaultKind, InvalidReason

Effect = Literal["bounded", "void", "measured on", "ends"]


@dataclass(frozen=True)
class Handling:
    """Effect of a kind of fault, for ratios and for limits."""

    ratio: Effect
    limits: Effect
    lasting: int = 0
    """Number of first units with this fault that rules out a disturbance; 0: never.

    Measuring then stops for this run, and in each further run after as many more.
    """


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


def final_reasons(causes: Iterable[InvalidReason]) -> tuple[InvalidReason, ...]:
    """Return the reasons that end a measurement."""
    return tuple(cause for cause in causes if HANDLING[cause.kind].limits == "ends")


def lasting(unit_faults: list[list[InvalidReason]], runs: int) -> bool:
    """Return whether all first units have the same lasting fault."""
    for kind, handling in HANDLING.items():
        has = [any(fault.kind == kind for fault in faults) for faults in unit_faults]
        first = has.index(False) if False in has else len(has)
        if handling.lasting and first >= handling.lasting * runs:
            return True
    return False

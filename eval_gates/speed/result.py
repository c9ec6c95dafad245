"""What a rule on speed found in the loads so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eval_gates.gate_report import EProcessPoint
from eval_gates.speed.invalid_reasons import InvalidReason

State = Literal["pass", "fail", "open", "disturbed", "invalid"]
"""disturbed: measuring stopped for this run, and the next one continues it; invalid: it is over."""


@dataclass(frozen=True)
class SpeedTestResult:
    """Verdict and bounds; `n` counts blocks, pairs of lives, or rounds, without the warm-up."""

    state: State
    n: int = 0
    decided_at: int | None = None
    estimate: float | None = None
    """The ratio of the typical block, or the share of rounds so far; None without any."""
    lower: float | None = None
    """One-sided bound that holds at any time, at the rule's level; None where there is none yet."""
    upper: float | None = None
    p_value: float = 1.0
    """Of 'the claim does not hold', valid at any time."""
    e_process: tuple[EProcessPoint, ...] = ()
    invalid_reasons: tuple[InvalidReason, ...] = ()
    """Why nothing is concluded."""
    withheld: str | None = None
    """Why a pass by the single units is none, in words."""
    voided: tuple[InvalidReason, ...] = ()
    """Faults of units that count for neither side."""
    lost: int = 0
    """Units that count for neither side because of a fault."""
    most: int = 0
    """Units that are measured at most, with those in the place of lost ones."""

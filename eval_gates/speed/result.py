"""Result of a performance gate's rule on the loads so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import InvalidReason
from pipeline.core.record import Record


class EProcessPoint(Record):
    """The evidence after n blocks or rounds."""

    n: int = Field(description="blocks or rounds")
    mean: float = Field(description="mean of the compared value so far")
    log10_e_pass: float = Field(description="evidence against 'inferior', as a power of ten")
    log10_e_fail: float = Field(description="evidence against 'not inferior', as a power of ten")


State = Literal["pass", "fail", "open", "disturbed", "invalid"]
"""State after some loads.

disturbed: this run stopped measuring, and the next one continues it; invalid: the measurement has
ended without a result.
"""


@dataclass(frozen=True)
class SpeedTestResult:
    """Verdict and bounds; `n` counts blocks, pairs of server runs or rounds after warm-up."""

    state: State
    n: int = 0
    decided_at: int | None = None
    estimate: float | None = None
    """Ratio of the typical block, or share of rounds that met the limits; None without any."""
    lower: float | None = None
    """Anytime-valid one-sided bound, at the rule's level; None if there is none."""
    upper: float | None = None
    p_value: float = 1.0
    """P-value of 'the requirement is not met', anytime-valid."""
    e_process: tuple[EProcessPoint, ...] = ()
    invalid_reasons: tuple[InvalidReason, ...] = ()
    """Why the measurement is invalid or disturbed."""
    withheld: str | None = None
    """Why the gate does not pass although its units would."""
    voided: tuple[InvalidReason, ...] = ()
    """Reasons of the units that count for neither side."""
    lost: int = 0
    """Units that count for neither side because of a fault."""
    most: int = 0
    """Maximum number of units, including replacements of lost ones."""

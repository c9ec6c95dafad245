"""What a rule on speed found in the loads so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eval_gates.records import TrailPoint
from eval_gates.speed.trust import Distrust

if TYPE_CHECKING:
    from eval_gates.speed.course import Course

State = Literal["pass", "fail", "open", "refused"]


@dataclass(frozen=True)
class SpeedFinding:
    """Verdict and bounds; `n` counts blocks, pairs of lives, or rounds, without the warm-up."""

    state: State
    n: int = 0
    decided_at: int | None = None
    estimate: float | None = None
    """The ratio of the typical block, the share of rounds so far, or the ratio of goodputs as the
    search tells it; None without any."""
    lower: float | None = None
    """One-sided bound that holds at any time, at the rule's level; None where there is none yet."""
    upper: float | None = None
    p_value: float = 1.0
    """Of 'the claim does not hold', valid at any time."""
    trail: tuple[TrailPoint, ...] = ()
    refused: tuple[Distrust, ...] = ()
    course: Course | None = None
    """Of a goodput: which rates were looked at, and which were tested."""

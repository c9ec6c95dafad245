"""Planned looks: when a gate may be decided, and with which share of its error rate.

They are at a quarter, a half and all of the values, with 10, 20 and 70 % of alpha (union bound), in
the drawn order. A margin of two points or more on many values has a first look at a sixteenth: the
shares are then 5, 10, 15 and 70 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eval_gates.statistics.bound import mean_bounds, min_identical_values, p_value

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import Comparison, FloatArray

State = Literal["pass", "fail", "open"]
MIN_VALUES = 64
"""Fewer values have one look."""
MIN_EARLY_VALUES = 4_096
MIN_EARLY_MARGIN = 0.02
"""Smallest list and margin with a look at a sixteenth, which needs 256 values to show anything."""
_LOOKS = ((0.25, 0.1), (0.5, 0.2), (1.0, 0.7))
_EARLY_LOOKS = ((0.0625, 0.05), (0.25, 0.1), (0.5, 0.15), (1.0, 0.7))


@dataclass(frozen=True)
class Look:
    """One planned look."""

    n: int  # of the first values
    share: float  # of the gate's error rate


@dataclass(frozen=True)
class Finding:
    """Outcome of the deciding or last look."""

    state: State
    comparison: Comparison
    alpha: float
    n: int  # values that the look used
    planned: int  # values of the last look
    number: int  # of the look, from 1 on
    looks: int
    lower: float  # bounds of the mean value, at this look's share of alpha
    upper: float
    p_value: float  # of 'the candidate is worse than allowed', over all looks so far
    own: float | None = None  # lower bound of :func:`findings`' `own`; None without these
    is_withheld: bool = (
        False  # it would be a pass, but a part loses too much, or all are to be asked
    )

    @property
    def is_inside(self) -> bool:
        """Whether the mean is shown to be inside the margin."""
        return self.state == "pass" or self.is_withheld

    @property
    def level(self) -> float:
        """Error rate of the look's bounds."""
        return (
            self.alpha * planned_looks(self.planned, self.comparison.margin)[self.number - 1].share
        )


def planned_looks(values: int, margin: float) -> tuple[Look, ...]:
    """Return the looks at that number of values; `margin` is `Comparison.margin`."""
    if values < 1:
        raise ValueError("there are no values to look at")
    if values < MIN_VALUES:
        return (Look(values, 1.0),)
    is_early = values >= MIN_EARLY_VALUES and margin >= MIN_EARLY_MARGIN
    looks = _EARLY_LOOKS if is_early else _LOOKS
    return tuple(Look(math.ceil(part * values), share) for part, share in looks)


def min_unchanged_values(margin: float, alpha: float) -> int:
    """Return how many unchanged values pass at the last look."""
    least = min_identical_values(margin, alpha)
    share = planned_looks(least, margin)[-1].share
    return least if share == 1 else min_identical_values(margin, alpha * share)


def first_decided(looks: Iterable[Finding]) -> Finding:
    """Return the first finding that decides, or the last."""
    finding = None
    for finding in looks:
        if finding.state != "open":
            break
    assert finding is not None
    return finding


def findings(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
    planned: int,
    own: Sequence[float] | None = None,
    *,
    can_pass: bool = True,
) -> Iterator[Finding]:
    """Yield the finding of each look that these scores allow.

    Scores are in [0, 1], in the drawn order; [n] each. `planned` is the last look's number of
    values. `own` is by pair how much better answers fit their own questions, in [-1, 1]; a pass
    needs a mean above 0. ValueError before the first look.
    """
    values = comparison.values(before, after)
    looks = planned_looks(planned, comparison.margin)
    if len(values) < looks[0].n:
        raise ValueError(f"{len(values)} values do not reach the first look at {looks[0].n}")
    p = 1.0
    for number, look in enumerate(looks, start=1):
        if look.n > len(values):
            break
        shown = values[: look.n]
        level = alpha * look.share
        bounds = mean_bounds(shown, level, lowest=comparison.lowest, highest=comparison.highest)
        at_least = p_value(shown, comparison.threshold, lowest=comparison.lowest)
        fits = None
        if own is not None:
            fits, p_own = _own(own[: look.n // 2], level)
            at_least = max(at_least, p_own)
        p = min(p, at_least / look.share)
        state: State = "open"
        if bounds.upper < comparison.threshold:
            state = "fail"
        elif can_pass and bounds.lower > comparison.threshold and (fits is None or fits > 0):
            state = "pass"
        yield Finding(
            state=state,
            comparison=comparison,
            alpha=alpha,
            n=look.n,
            planned=looks[-1].n,
            number=number,
            looks=len(looks),
            lower=bounds.lower,
            upper=bounds.upper,
            p_value=p,
            own=fits,
        )


def _own(differences: Sequence[float] | FloatArray, level: float) -> tuple[float, float]:
    if not len(differences):
        return -1.0, 1.0
    return mean_bounds(differences, level).lower, p_value(differences, 0.0, lowest=-1.0)

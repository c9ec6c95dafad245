"""Comparison of two paired scores in [0, 1]: one bounded value and its threshold.

Points: candidate - baseline against -margin. Recovery r: candidate - r * baseline against 0, which
avoids a ratio of noisy means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """A gate's requirement."""

    kind: Literal["points", "recovery"]
    size: float
    """The margin as a fraction (0.01 is one point), or the share of the baseline to retain."""

    def __post_init__(self) -> None:
        if not 0 < self.size < 1:
            name = "margin" if self.kind == "points" else "recovery"
            raise ValueError(f"the {name} must be between 0 and 1, not {self.size}")

    @classmethod
    def points(cls, margin: float) -> Comparison:
        """Require a mean less than `margin` (a fraction) below the baseline's."""
        return cls("points", margin)

    @classmethod
    def recovery(cls, share: float) -> Comparison:
        """Require a mean above `share` of the baseline's."""
        return cls("recovery", share)

    @property
    def weight(self) -> float:
        return 1.0 if self.kind == "points" else self.size

    @property
    def lowest(self) -> float:
        return -self.weight

    @property
    def highest(self) -> float:
        return 1.0

    @property
    def threshold(self) -> float:
        """Mean value at or below which the candidate is inferior."""
        return -self.size if self.kind == "points" else 0.0

    @property
    def margin(self) -> float:
        """Margin in points as a fraction; 0 for a recovery, whose points are not known before."""
        return self.size if self.kind == "points" else 0.0

    @property
    def words(self) -> str:
        if self.kind == "points":
            return f"a margin of {100 * self.size:.{2 if self.size >= 1e-4 else 4}f} points"
        return f"a recovery of {100 * self.size:.6g} %"

    def allowed_drop(self, baseline: float) -> float:
        """Return the drop in mean score to the threshold."""
        return self.size if self.kind == "points" else (1 - self.size) * baseline

    def values(self, before: Sequence[float], after: Sequence[float]) -> FloatArray:
        """Return one value per question: [n], in [lowest, highest]."""
        import numpy as np

        old = np.asarray(before, dtype=float)
        new = np.asarray(after, dtype=float)
        if old.ndim != 1 or old.shape != new.shape:
            raise ValueError(f"{old.size} scores and {new.size} scores are not paired")
        for scores in (old, new):
            if not np.all((scores >= 0) & (scores <= 1)):  # also refuses NaN
                raise ValueError("every score must be present and in [0, 1]")
        return np.asarray(new - self.weight * old)

    def is_lost_by_question(self, before: Sequence[float], after: Sequence[float]) -> bool:
        """Return whether these scores lose too much, each question counted once.

        A mean of clusters hides a loss that grows with their size. This compares an
        estimate, and has no error rate.
        """
        return bool(self.values(before, after).mean() <= self.threshold)


LOST_IN_LARGE_CLUSTERS = (
    "with each question counted once the loss is outside of it: large clusters lose more than "
    "small ones, which their mean hides"
)

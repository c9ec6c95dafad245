"""What one change costs: of the mean score, and in nats a token."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from pydantic import Field

from eval_gates.gate_result import format_percent
from eval_gates.statistics.bound import mean_bounds
from prepare.record import Record


class Effect(Record):
    """Effect of one change on the mean score, as a fraction: 0.01 is a point."""

    score: float | None = Field(None, description="mean score with it")
    difference: float = Field(description="of the mean score; below 0 it costs")
    lower: float = Field(description="one-sided bound of it at level alpha")
    upper: float
    error: float = Field(0.0, description="standard error of the difference")
    nats: float = Field(description="lost a token")
    nats_error: float = Field(0.0, description="standard error of that")

    @property
    def cells(self) -> dict[str, str]:
        """The columns of a table of effects, by heading."""
        return {
            "score": format_percent(self.score, 1, nothing=""),
            "difference, points": f"{_points(self.difference)} +- {_points(self.error)}",
            "bounds": f"{_points(self.lower)} to {_points(self.upper)}",
            "nats a token lost": f"{self.nats + 0.0:.3f} +- {self.nats_error:.3f}",
        }


def measure_effect(
    scores: Sequence[Sequence[float]], nats: Sequence[Sequence[float]], alpha: float
) -> Effect:
    """Return the change of mean scores, and of nats a token.

    `scores` in [0, 1] and `nats` are paired, before and after.
    """
    differences, lost = (
        [after - before for before, after in zip(*pair, strict=True)] for pair in (scores, nats)
    )
    bounds = mean_bounds(differences, alpha, lowest=-1.0, highest=1.0)
    return Effect(
        score=fmean(scores[1]),
        difference=fmean(differences),
        lower=bounds.lower,
        upper=bounds.upper,
        error=_error(differences),
        nats=fmean(lost),
        nats_error=_error(lost),
    )


def _error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _points(fraction: float) -> str:
    return f"{100 * fraction + 0.0:.1f}"

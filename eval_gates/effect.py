"""What one change costs: of the mean score, and in nats a token."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from pydantic import Field

from eval_gates.gate_result import format_percent
from eval_gates.statistics.bound import mean_bounds
from pipeline.core.record import Record


class Effect(Record):
    """Effect of one change on the mean score, as a fraction: 0.01 is a point."""

    score: float | None = Field(None, description="mean score with it")
    difference: float = Field(description="of the mean score; below 0 it costs")
    lower: float = Field(description="one-sided bound of it at level alpha")
    upper: float
    error: float = Field(0.0, description="standard error of the difference")
    nats: float | None = Field(
        None, description="lost a token, where answers have log-probabilities"
    )
    nats_error: float = Field(0.0, description="standard error of that")

    @property
    def cells(self) -> dict[str, str]:
        """The columns of a table of effects, by heading."""
        nats = "" if self.nats is None else f"{self.nats + 0.0:.3f} +- {self.nats_error:.3f}"
        return {
            "score": format_percent(self.score, 1, nothing=""),
            "difference, points": f"{_points(self.difference)} +- {_points(self.error)}",
            "bounds": f"{_points(self.lower)} to {_points(self.upper)}",
            "nats a token lost": nats,
        }


def measure_effect(
    scores: Sequence[Sequence[float]], nats: Sequence[Sequence[float]] | None, alpha: float
) -> Effect:
    """Return the change of mean scores, and of nats a token.

    `scores` in [0, 1] and `nats` are paired, before and after.
    """
    differences, lost = _changes(*scores), _changes(*nats) if nats else None
    found = mean_bounds(differences, alpha, lowest=-1.0, highest=1.0)
    return Effect(
        score=fmean(scores[1]),
        difference=fmean(differences),
        lower=found.lower,
        upper=found.upper,
        error=_error(differences),
        nats=fmean(lost) if lost else None,
        nats_error=_error(lost) if lost else 0.0,
    )


def _changes(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def _error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _points(fraction: float) -> str:
    return f"{100 * fraction + 0.0:.1f}"

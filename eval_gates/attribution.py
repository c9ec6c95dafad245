"""Losses by weights and by KV cache: a 2 x 2 comparison."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from pydantic import Field

from eval_gates.clusters import group_by_cluster, means
from eval_gates.gate_result import format_percent
from eval_gates.rows import Answer
from eval_gates.statistics.bound import mean_bounds
from eval_gates.verdicts import check_paired
from pipeline.core.record import Record

Answers = Sequence[Answer]


class Effect(Record):
    """Effect of one change on the mean score, as a fraction: 0.01 is a point."""

    score: float | None = Field(None, description="mean score with it; None of an interaction")
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


class AttributionReport(Record):
    """Sources of one suite's change."""

    suite: str
    n: int = Field(description="questions, or clusters of them, that all four answered")
    alpha: float = Field(description="error rate of each bound; nothing is corrected for several")
    baseline_kv: str = Field(description="type of the baseline's KV cache")
    variant_kv: str = Field(description="type of the variant's")
    baseline: float | None = Field(None, description="mean score of the baseline")
    weights: Effect = Field(description="the variant's weights, with the baseline's KV cache")
    kv_cache: Effect = Field(description="the baseline's weights, with the variant's KV cache")
    both: Effect = Field(description="the variant as it was judged")
    interaction: Effect = Field(description="both, less weights and KV cache each alone")
    is_cache_read: bool = Field(
        True, description="false if every answer of the KV cache alone equals the baseline's"
    )
    note: str = Field("", description="what else the KV cache's type changes, by the profile")

    @property
    def rows(self) -> list[dict[str, str]]:
        """One row per change, by heading."""
        # Some engines' prefill does not read the cache (MLA).
        cache = {"difference, points": "not measured: the engine reads a prompt without its cache"}
        named = {
            "weights alone": self.weights.cells,
            f"KV cache alone, {self.variant_kv} for {self.baseline_kv}": self.kv_cache.cells
            if self.is_cache_read
            else dict.fromkeys(self.kv_cache.cells, "") | cache,
            "both": self.both.cells,
            "beyond their sum": self.interaction.cells,
        }
        own = dict.fromkeys(self.both.cells, "")
        own["score"] = format_percent(self.baseline, 1, nothing="")
        return [{"change": name, **cells} for name, cells in {"baseline": own, **named}.items()]


def measure_effect(
    scores: Sequence[Sequence[float]], nats: Sequence[Sequence[float]] | None, alpha: float
) -> Effect:
    """Return the change of mean scores, and of nats a token.

    `scores` in [0, 1] and `nats` are paired, before and after.
    """
    differences, lost = _changes(*scores), _changes(*nats) if nats else None
    return _effect(differences, lost, alpha).model_copy(update={"score": fmean(scores[1])})


def _changes(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def attribute(
    suite: str,
    *,
    baseline: Answers,
    weights: Answers,
    kv_cache: Answers,
    both: Answers,
    alpha: float,
    kv_dtypes: tuple[str, str],
    note: str = "",
) -> AttributionReport:
    """Compare the four cells, question by question; ValueError if prompts differ.

    The interaction is in [-2, 2].
    """
    for name, cell in (("weights", weights), ("KV cache", kv_cache), ("both", both)):
        check_paired(f"{suite}, {name}", baseline, cell)
    arms, keys = (baseline, weights, kv_cache, both), ("score", "nats")
    has_nats = all(row.nats is not None for arm in arms for row in arm)
    cells_of = {
        key: list(zip(*(means(group_by_cluster(arm), key) for arm in arms), strict=True))
        for key in (keys if has_nats else keys[:1])
    }

    def alone(arm: int) -> Effect:
        pairs = {key: [[c[n] for c in cells] for n in (0, arm)] for key, cells in cells_of.items()}
        return measure_effect(pairs["score"], pairs.get("nats"), alpha)

    beyond = {key: [b - w - k + a for a, w, k, b in cells] for key, cells in cells_of.items()}
    return AttributionReport(
        suite=suite,
        n=len(cells_of["score"]),
        alpha=alpha,
        baseline_kv=kv_dtypes[0],
        variant_kv=kv_dtypes[1],
        baseline=fmean(cells[0] for cells in cells_of["score"]),
        weights=alone(1),
        kv_cache=alone(2),
        both=alone(3),
        interaction=_effect(beyond["score"], beyond.get("nats"), alpha, 2.0),
        is_cache_read=not has_nats
        or any(
            getattr(x, key) != getattr(y, key)
            for x, y in zip(baseline, kv_cache, strict=True)
            for key in keys
        ),
        note=note,
    )


def _effect(
    differences: Sequence[float], lost: Sequence[float] | None, alpha: float, size: float = 1.0
) -> Effect:
    found = mean_bounds(differences, alpha, lowest=-size, highest=size)
    return Effect(
        difference=fmean(differences),
        lower=found.lower,
        upper=found.upper,
        error=_error(differences),
        nats=fmean(lost) if lost else None,
        nats_error=_error(lost) if lost else 0.0,
    )


def _error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _points(fraction: float) -> str:
    return f"{100 * fraction + 0.0:.1f}"

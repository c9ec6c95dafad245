"""Losses by weights and by KV cache: bounds of a 2 x 2 comparison, which decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from eval_gates.clusters import group_by_cluster, means
from eval_gates.gate_report import GateReport
from eval_gates.statistics.bound import mean_bounds
from eval_gates.verdicts import check_paired
from pipeline.core.record import Record

CLOSE = 0.5  # of the allowed drop: a gate that lost as much is close to its margin
Answers = Sequence[Mapping[str, Any]]


class Effect(Record):
    """Effect of one change on the mean score, as a fraction: 0.01 is a point."""

    difference: float = Field(description="of the mean score; below 0 it costs")
    lower: float = Field(description="one-sided bound of it at level alpha")
    upper: float

    @property
    def words(self) -> str:
        between = f"{_points(self.lower)} to {_points(self.upper)}"
        if self.lower == self.upper == self.difference == 0:
            return "changes nothing"
        if self.upper < 0:
            return f"costs {_points(-self.difference)} points ({between})"
        if self.lower > 0:
            return f"gains {_points(self.difference)} points ({between})"
        return f"{_points(self.difference)} points, not told from none ({between})"


class AttributionReport(Record):
    """Sources of one suite's change."""

    suite: str
    n: int = Field(description="questions, or clusters of them, that all four answered")
    alpha: float = Field(description="error rate of each bound; nothing is corrected for several")
    baseline_kv: str = Field(description="type of the baseline's KV cache")
    variant_kv: str = Field(description="type of the variant's")
    weights: Effect = Field(description="the variant's weights, with the baseline's KV cache")
    kv_cache: Effect = Field(description="the baseline's weights, with the variant's KV cache")
    both: Effect = Field(description="the variant as it was judged")
    interaction: Effect = Field(description="both, less weights and KV cache each alone")
    note: str = Field("", description="what else the KV cache's type changes, by the profile")

    @property
    def words(self) -> str:
        told = (
            f"{self.suite}, {self.n} questions: the weights alone {self.weights.words}; the KV "
            f"cache alone ({self.variant_kv} for {self.baseline_kv}) {self.kv_cache.words}; "
            f"both {self.both.words}; together beyond their sum {self.interaction.words}"
        )
        return f"{told}. KV cache: {self.note}" if self.note else told


def is_wanted(gate: GateReport, allowed_drop: float) -> bool:
    """Return whether a gate did not pass, or lost at least half of `allowed_drop`."""
    return gate.verdict != "pass" or -gate.difference >= CLOSE * allowed_drop


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

    The interaction is a difference of differences, in -2 to 2.

    Args:
        baseline: rows with id, prompt_sha256 and score, in the order of asking.
        weights: the variant's weights with the baseline's KV cache.
        kv_cache: the baseline's weights with the variant's KV cache.
        both: the variant as judged.
        alpha: error rate of each bound.
        note: other changes by the KV cache's type.
    """
    for name, cell in (("weights", weights), ("KV cache", kv_cache), ("both", both)):
        check_paired(f"{suite}, {name}", baseline, cell)
    none, some, cache, all_of = (
        means(group_by_cluster(cell), "score") for cell in (baseline, weights, kv_cache, both)
    )

    def effect(values: list[float], size: float = 1.0) -> Effect:
        found = mean_bounds(values, alpha, lowest=-size, highest=size)
        mean = sum(values) / len(values)
        return Effect(difference=mean, lower=found.lower, upper=found.upper)

    cells = list(zip(none, some, cache, all_of, strict=True))
    return AttributionReport(
        suite=suite,
        n=len(none),
        alpha=alpha,
        baseline_kv=kv_dtypes[0],
        variant_kv=kv_dtypes[1],
        weights=effect([w - a for a, w, _, _ in cells]),
        kv_cache=effect([k - a for a, _, k, _ in cells]),
        both=effect([b - a for a, _, _, b in cells]),
        interaction=effect([b - w - k + a for a, w, k, b in cells], 2.0),
        note=note,
    )


def _points(fraction: float) -> str:
    return f"{100 * fraction + 0.0:.1f}"

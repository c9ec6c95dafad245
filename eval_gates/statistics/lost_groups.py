"""Parts of a suite that are shown to be lost by themselves, which a mean hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval_gates.clusters import means
from eval_gates.statistics.bound import mean_bounds, min_identical_values
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.parts import Part, Partition


@dataclass(frozen=True)
class LostGroup:
    """A subject, a task, an ability or a tool that is shown to lose more than the margin."""

    name: str
    n: int  # questions, or clusters
    drop: float  # of its mean score, at least


def find_lost_groups(
    comparison: Comparison, alpha: float, partitions: Sequence[Partition]
) -> tuple[LostGroup, ...]:
    """Return the parts that fail the comparison by themselves, the worst first.

    The level is divided by the number of partitions, and in each by that of the parts that are
    large enough to show anything (Bonferroni): a variant that loses the margin everywhere has a
    lost part in at most alpha of the cases.
    """
    told = [parts for parts in partitions if len(parts) > 1]
    lost = list[LostGroup]()
    for parts in told:
        shown = _large_enough(comparison, alpha / len(told), parts)
        for part in shown:
            lost += _lost(comparison, alpha / len(told) / len(shown), part)
    return tuple(sorted(lost, key=lambda group: -group.drop))


def _large_enough(comparison: Comparison, level: float, parts: Partition) -> list[Part]:
    """Return the most parts of which each would show that all of it is lost, at its own level.

    This depends on the parts' sizes alone, so it adds no chance of error.
    """
    # The part of the values' range below the threshold is as a margin to what is lost whole.
    below = (comparison.threshold - comparison.lowest) / (comparison.highest - comparison.lowest)
    by_size = sorted(parts, key=_size, reverse=True)
    for number in range(len(parts), 0, -1):
        if _size(by_size[number - 1]) >= min_identical_values(below, level / number):
            return by_size[:number]
    return []


def _size(part: Part) -> int:
    return len(means(part.before, "score"))


def _lost(comparison: Comparison, level: float, part: Part) -> list[LostGroup]:
    """Return the part if it is shown to lose more."""
    before = means(part.before, "score")
    after = means(part.after, "score")
    values = comparison.values(before, after)
    limits = {"lowest": comparison.lowest, "highest": comparison.highest}
    if mean_bounds(values, level, **limits).upper >= comparison.threshold:
        return []
    changes = [new - old for old, new in zip(before, after, strict=True)]
    return [LostGroup(part.name, len(changes), -mean_bounds(changes, level).upper)]

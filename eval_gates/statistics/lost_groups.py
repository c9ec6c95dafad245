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
        by_size = sorted(parts, key=_size, reverse=True)
        level = alpha / len(told)
        shown = count_shown(comparison, level, list(map(_size, by_size)))
        for part in by_size[:shown]:
            lost += _lost(comparison, level / shown, part)
    return tuple(sorted(lost, key=lambda group: -group.drop))


def count_shown(comparison: Comparison, level: float, sizes: Sequence[int]) -> int:
    """Return of how many parts, largest first, each would show that all of it is lost.

    `sizes` are numbers of values, falling. It depends on them alone, so it adds no chance of error.
    """
    # The part of the values' range below the threshold is as a margin to what is lost whole.
    below = (comparison.threshold - comparison.lowest) / (comparison.highest - comparison.lowest)
    for number in range(len(sizes), 0, -1):
        if sizes[number - 1] >= min_identical_values(below, level / number):
            return number
    return 0


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

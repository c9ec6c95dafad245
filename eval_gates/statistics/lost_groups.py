"""Parts of a suite that are shown to be lost by themselves, which a mean hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eval_gates.clusters import group_by_cluster, means
from eval_gates.statistics.bound import counted_bounds, mean_bounds, min_identical_values
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.parts import Part, Partition, distinct, merged


@dataclass(frozen=True)
class LostGroup:
    """A subject, a task, an ability or a tool that is shown to lose more than the margin."""

    name: str
    n: int  # questions, or clusters
    drop: float  # of its mean score, at least
    is_declared: bool = False  # a part by the policy's `parts_by`


def find_lost_groups(
    comparison: Comparison, alpha: float, partitions: Sequence[Partition]
) -> tuple[LostGroup, ...]:
    """Return the parts that fail the comparison by themselves, the worst first.

    Parts that are too small to show anything are one part together. The level is divided by the
    number of partitions, in each by that of its parts, and where clusters have several questions
    by two, for the loss by cluster and by question (Bonferroni): a variant that loses the margin
    everywhere has a lost part in at most alpha of the cases.
    """
    lost = list[LostGroup]()
    shared = alpha / _count_means(partitions)
    watched = _watched(comparison, shared, partitions)
    for parts in watched:
        level = shared / len(watched) / len(parts)
        for part in parts:
            if (group := _find_lost(comparison, level, part)) is not None:
                lost.append(group)
    return tuple(sorted(lost, key=lambda group: -group.drop))


def find_doubtful_groups(
    comparison: Comparison, alpha: float, partitions: Sequence[Partition]
) -> tuple[LostGroup, ...]:
    """Return the parts that fail the comparison if each is looked at alone, the worst first.

    It decides nothing: if each part loses exactly the margin, alpha of them are so by chance.
    """
    level = alpha / _count_means(partitions)
    parts = [part for partition in distinct(partitions) for part in partition]
    lost = [_find_lost(comparison, level, part) for part in parts]
    return tuple(sorted(filter(None, lost), key=lambda group: -group.drop))


def count_shown(comparison: Comparison, level: float, sizes: Sequence[int]) -> int:
    """Return of how many parts, largest first, each would show that all of it is lost.

    `sizes` are numbers of values, falling. Parts of one size are all counted, or none; the others
    are one more part together. It depends on the sizes alone, so it adds no chance of error.
    """
    # The part of the values' range below the threshold is as a margin to what is lost whole.
    below = (comparison.threshold - comparison.lowest) / (comparison.highest - comparison.lowest)
    for number in range(len(sizes), 0, -1):
        smallest = sizes[number - 1]
        has_others = number < len(sizes)
        if has_others and sizes[number] == smallest:
            continue
        if smallest >= min_identical_values(below, level / (number + has_others)):
            return number
    return 0


def count_seen(
    comparison: Comparison, level: float, sizes: Sequence[int], before: float, after: float
) -> int:
    """Return of how many parts, largest first, a fall between these mean scores would be shown.

    Answers before and after are independent, as guesses are. It is shown for a loss that is smaller
    than expected by its standard deviation, so in most cases. `sizes` as in :func:`count_shown`.
    """
    watched = count_shown(comparison, level, sizes)
    parts = watched + (watched < len(sizes))
    for number in range(watched, 0, -1):
        size = sizes[number - 1]
        if number < watched and sizes[number] == size:
            continue  # as the one after it
        pairs = [(1, 0), (1, 1), (0, 0), (0, 1)]
        chances = [
            (before if old else 1 - before) * (after if new else 1 - after) for old, new in pairs
        ]
        values = comparison.values([old for old, _ in pairs], [new for _, new in pairs])
        limits = {"lowest": comparison.lowest, "highest": comparison.highest}
        counts = [chance * size for chance in chances]
        mean = sum(chance * value for chance, value in zip(chances, values, strict=True))
        squares = sum(chance * value**2 for chance, value in zip(chances, values, strict=True))
        # Answers that are right after all, by luck: of a lost one that is a point each.
        lucky = min(counts[0], math.sqrt(size * max(0.0, squares - mean**2)))
        counts = [counts[0] - lucky, counts[1] + lucky, *counts[2:]]
        bounds = counted_bounds(values, counts, level / parts, **limits)
        if bounds.upper < comparison.threshold:
            return number
    return 0


def _watched(
    comparison: Comparison, alpha: float, partitions: Sequence[Partition]
) -> list[list[Part]]:
    """Return by partition the parts that are looked at; one that can show nothing is left out."""
    told = [sorted(parts, key=_size, reverse=True) for parts in distinct(partitions)]
    while told:
        level = alpha / len(told)
        shown = [count_shown(comparison, level, list(map(_size, parts))) for parts in told]
        if all(shown):
            return [_with_others(parts, number) for parts, number in zip(told, shown, strict=True)]
        told = [parts for parts, number in zip(told, shown, strict=True) if number]
    return []


def _with_others(by_size: list[Part], shown: int) -> list[Part]:
    """Return the largest parts, and the others together; a single one keeps its name."""
    others = by_size[shown:]
    if len(others) < 2:
        return by_size
    return [*by_size[:shown], merged(f"{len(others)} others", others)]


def _size(part: Part) -> int:
    return len(means(part.before, "score"))


def _count_means(partitions: Sequence[Partition]) -> int:
    """Return by how many means parts are judged: by cluster, and by question if they can differ.

    Clusters of parts that are merged are one, so those of all parts count.
    """
    for parts in partitions:
        labels = [row.cluster for part in parts for row in part.before if row.cluster]
        if len(set(labels)) < len(labels):
            return 2
    return 1


def _weightings(part: Part) -> list[list[float]]:
    """Return the weights of a part's clusters in each mean that may show it lost.

    They are 1; and where some clusters are larger, shares of the largest one's questions.
    """
    sizes = [len(cluster) for cluster in group_by_cluster(part.before)]
    alike = [1.0] * len(sizes)
    largest = max(sizes)
    return [alike] if min(sizes) == largest else [alike, [size / largest for size in sizes]]


def _find_lost(comparison: Comparison, level: float, part: Part) -> LostGroup | None:
    """Return the part if it is shown to lose more, by cluster or by question."""
    before = means(part.before, "score")
    after = means(part.after, "score")
    values = comparison.values(before, after).tolist()
    changes = [new - old for old, new in zip(before, after, strict=True)]
    drops = [
        _shown_drop(comparison, level, values, changes, weights) for weights in _weightings(part)
    ]
    drop = max((drop for drop in drops if drop is not None), default=None)
    return LostGroup(part.name, len(changes), drop, part.is_declared) if drop is not None else None


def _shown_drop(
    comparison: Comparison,
    level: float,
    values: Sequence[float],
    changes: Sequence[float],
    weights: Sequence[float],
) -> float | None:
    """Return by how much the weighted mean score falls at least, if that is shown to be too much.

    Weights are in (0, 1], and known before the answers. A weighted value stays in its range, so
    its bound holds.
    """
    mean_weight = sum(weights) / len(weights)
    weighted = [weight * value for weight, value in zip(weights, values, strict=True)]
    limits = {"lowest": comparison.lowest, "highest": comparison.highest}
    if mean_bounds(weighted, level, **limits).upper >= comparison.threshold * mean_weight:
        return None
    fallen = [weight * change for weight, change in zip(weights, changes, strict=True)]
    return -mean_bounds(fallen, level).upper / mean_weight

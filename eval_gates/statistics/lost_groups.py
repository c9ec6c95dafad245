"""Parts of a suite that a mean hides: subjects, tasks, or abilities that are lost by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval_gates.clusters import means
from eval_gates.rows import Answer
from eval_gates.statistics.bound import mean_bounds
from eval_gates.statistics.comparison import Comparison

Answers = Sequence[Answer]


@dataclass(frozen=True)
class LostGroup:
    """A subject, a task or an ability that is shown to lose more than the margin."""

    name: str
    n: int  # questions, or clusters
    drop: float  # of its mean score, at least


def find_lost_groups(
    comparison: Comparison,
    alpha: float,
    before: Answers,
    after: Answers,
    part_of: Callable[[Answer], str],
) -> tuple[LostGroup, ...]:
    """Return the parts that fail the comparison by themselves, the worst first.

    A mean of many groups hides one that is lost. The level is divided by their number
    (Bonferroni), so that a variant that loses the margin everywhere has none in 1 - alpha.
    """
    pairs: dict[str, tuple[list[Answer], list[Answer]]] = {}
    for old, new in zip(before, after, strict=True):
        ours, theirs = pairs.setdefault(part_of(old), ([], []))
        ours.append(old)
        theirs.append(new)
    if len(pairs) < 2 or "" in pairs:
        return ()
    level = alpha / len(pairs)
    lost = []
    for name, sides in pairs.items():
        scores = [means(rows, "score") for rows in sides]
        values = comparison.values(scores[0], scores[1])
        limits = {"lowest": comparison.lowest, "highest": comparison.highest}
        if mean_bounds(values, level, **limits).upper < comparison.threshold:
            change = mean_bounds([new - old for old, new in zip(*scores, strict=True)], level)
            lost.append(LostGroup(name, len(values), -change.upper))
    return tuple(sorted(lost, key=lambda group: -group.drop))

"""What a model scores that knows nothing of a question but its choices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from eval_gates.clusters import labels_of

Choices = Sequence[tuple[str, float]]
"""Of one question: each choice's text, and the score of who takes it."""


def guessing(rows: Sequence[Mapping[str, Any]], choices: Mapping[str, Choices]) -> float:
    """The mean score by chance, or of always giving one answer such as 'A' or 'yes', if it is more.

    Where a question lacks that answer, chance is taken. Each cluster of questions counts as one, as
    it does in the scores that are compared with this.

    Args:
        choices: by question's id; empty where answers are not chosen, and so guessing scores 0.
    """
    labels = labels_of(rows)
    sizes = Counter(labels)
    by_chance, gained = 0.0, defaultdict[str, float](float)
    for row, label in zip(rows, labels, strict=True):
        given = choices.get(row["id"], ())
        if given:
            weight = 1 / (len(sizes) * sizes[label])
            chance = sum(score for _, score in given) / len(given)
            by_chance += weight * chance
            for text, score in dict(given).items():
                gained[text] += weight * (score - chance)
    return by_chance + max([0.0, *gained.values()])

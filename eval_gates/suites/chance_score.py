"""Chance-level score of a multiple-choice suite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from eval_gates.clusters import labels_of

Choices = Sequence[tuple[str, float]]
"""Each choice's text and score."""


def guessing(rows: Sequence[Mapping[str, Any]], choices: Mapping[str, Choices]) -> float:
    """Return the mean score of a guess, or of always giving one answer such as 'A', if higher.

    Each cluster of questions counts as one.

    Args:
        choices: by question's id; empty if answers are not chosen: then guessing scores 0.
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

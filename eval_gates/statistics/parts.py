"""Parts of a suite that its mean hides: subjects, tasks, abilities, tools, a field's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eval_gates.rows import Answer

Answers = Sequence[Answer]


@dataclass(frozen=True)
class Part:
    """Both sides' answers to the questions of one part, paired."""

    name: str
    is_declared: bool = False  # by the policy's `parts_by`
    before: list[Answer] = field(default_factory=list)
    after: list[Answer] = field(default_factory=list)


Partition = Sequence[Part]
"""Parts without a common question."""


def split(
    before: Answers,
    after: Answers,
    name_of: Callable[[Answer], str],
    *,
    is_declared: bool = False,
) -> list[Part]:
    """Return the parts in order of their first answer, named by the answers of `before`."""
    parts: dict[str, Part] = {}
    for old, new in zip(before, after, strict=True):
        name = name_of(old)
        part = parts.setdefault(name, Part(name, is_declared))
        part.before.append(old)
        part.after.append(new)
    return list(parts.values())


def split_by_group(before: Answers, after: Answers) -> list[Partition]:
    """Return the one partition by group; none where a question has no group."""
    if not all(row.group for row in before):
        return []
    return [split(before, after, lambda row: row.group)]


def split_by_part(before: Answers, after: Answers) -> list[Partition]:
    """Return the one partition by the policy's `parts_by`; none without that key.

    ValueError if an answer lacks its part, or the sides name different ones.
    """
    named = [(old.part, new.part) for old, new in zip(before, after, strict=True)]
    if not any(old or new for old, new in named):
        return []
    for row, (old, new) in zip(before, named, strict=True):
        if not old or old != new:
            raise ValueError(f"question {row.id} is of the part '{old}', and of '{new}'")
    return [split(before, after, lambda row: row.part, is_declared=True)]


def distinct(partitions: Sequence[Partition]) -> list[Partition]:
    """Return the partitions of several parts, the last of those with the same questions and scores.

    Abilities have scores of their own.
    """
    by_content = {
        frozenset(
            tuple(
                (old.id, old.score, new.score)
                for old, new in zip(part.before, part.after, strict=True)
            )
            for part in parts
        ): parts
        for parts in partitions
        if len(parts) > 1
    }
    return list(by_content.values())


def merged(name: str, parts: Sequence[Part]) -> Part:
    """Return one part of several; a cluster that is in several of them is one again."""
    pairs = [pair for part in parts for pair in zip(part.before, part.after, strict=True)]
    pairs.sort(key=lambda pair: pair[0].cluster)
    before = [ours for ours, _ in pairs]
    after = [theirs for _, theirs in pairs]
    return Part(name, parts[0].is_declared, before, after)

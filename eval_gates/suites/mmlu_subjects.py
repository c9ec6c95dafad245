"""MMLU's 57 subjects in lm-eval's four groups, and scores by both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

GROUPS: dict[str, tuple[str, ...]] = {
    "STEM": (
        "abstract_algebra",
        "anatomy",
        "astronomy",
        "college_biology",
        "college_chemistry",
        "college_computer_science",
        "college_mathematics",
        "college_physics",
        "computer_security",
        "conceptual_physics",
        "electrical_engineering",
        "elementary_mathematics",
        "high_school_biology",
        "high_school_chemistry",
        "high_school_computer_science",
        "high_school_mathematics",
        "high_school_physics",
        "high_school_statistics",
        "machine_learning",
    ),
    "humanities": (
        "formal_logic",
        "high_school_european_history",
        "high_school_us_history",
        "high_school_world_history",
        "international_law",
        "jurisprudence",
        "logical_fallacies",
        "moral_disputes",
        "moral_scenarios",
        "philosophy",
        "prehistory",
        "professional_law",
        "world_religions",
    ),
    "social sciences": (
        "econometrics",
        "high_school_geography",
        "high_school_government_and_politics",
        "high_school_macroeconomics",
        "high_school_microeconomics",
        "high_school_psychology",
        "human_sexuality",
        "professional_psychology",
        "public_relations",
        "security_studies",
        "sociology",
        "us_foreign_policy",
    ),
    "other": (
        "business_ethics",
        "clinical_knowledge",
        "college_medicine",
        "global_facts",
        "human_aging",
        "management",
        "marketing",
        "medical_genetics",
        "miscellaneous",
        "nutrition",
        "professional_accounting",
        "professional_medicine",
        "virology",
    ),
}
UNKNOWN_GROUP = "not in MMLU"  # a folder may hold subjects of the user's own
GROUP_OF = {subject: group for group, subjects in GROUPS.items() for subject in subjects}


class Score(NamedTuple):
    """Number of questions, and their mean score (0 to 1)."""

    n: int
    score: float


class GroupedScores(NamedTuple):
    """Scores of answered questions, by subject and by group."""

    subjects: dict[str, Score]
    groups: dict[str, Score]


def score_by_group(rows: Iterable[Mapping[str, Any]]) -> GroupedScores:
    """Return mean scores of answered MMLU questions by subject and by group.

    A group's mean is over its questions, as in lm-eval (`weight_by_size`).
    """
    subjects: dict[str, list[float]] = {}
    for row in rows:
        subjects.setdefault(row["subject"], []).append(float(row["score"]))
    groups: dict[str, list[float]] = {}
    for subject, scores in subjects.items():
        groups.setdefault(GROUP_OF.get(subject, UNKNOWN_GROUP), []).extend(scores)
    return GroupedScores(
        _means(subjects, [*GROUP_OF, *sorted(set(subjects) - set(GROUP_OF))]),
        _means(groups, [*GROUPS, UNKNOWN_GROUP]),
    )


def _means(scores: dict[str, list[float]], order: list[str]) -> dict[str, Score]:
    return {
        name: Score(len(scores[name]), sum(scores[name]) / len(scores[name]))
        for name in order
        if name in scores
    }

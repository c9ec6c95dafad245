"""MMLU's subjects; the end-to-end test compares the groups with lm-eval's."""

from __future__ import annotations

from eval_gates.suites.mmlu_subjects import GROUP_OF, GROUPS


def test_every_subject_is_in_one_group() -> None:
    assert len(GROUP_OF) == sum(len(subjects) for subjects in GROUPS.values()) == 57
    assert {group: len(subjects) for group, subjects in GROUPS.items()} == {
        "STEM": 19,
        "humanities": 13,
        "social sciences": 12,
        "other": 13,
    }

"""Assay sensitivity: a gate that guessing could pass is not sensitive."""

from __future__ import annotations

import math
import random

import pytest

from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import (
    SensitivityCheck,
    check_sensitivities,
    check_sensitivity,
    min_questions_for_sensitivity,
    own_gains,
)
from eval_gates.statistics.comparison import Comparison

ONE = Comparison.points(0.01)


def right(n: int, share: float) -> list[float]:
    return [1.0] * round(n * share) + [0.0] * (n - round(n * share))


@pytest.mark.parametrize(
    ("baseline", "chance", "comparison", "sensitive"),
    [
        (right(1000, 0.6), 0.25, ONE, True),
        (right(1000, 0.27), 0.25, ONE, False),
        (right(40, 0.3), 0.25, ONE, False),
        (right(1000, 0.6), 0.25, Comparison.points(0.4), False),
        (right(1000, 0.6), 0.25, Comparison.recovery(0.98), True),
        (right(1000, 0.6), 0.25, Comparison.recovery(0.4), False),
        ([0.0] * 500, 0.0, ONE, False),
    ],
)
def test_margin_against_a_known_score(
    baseline: list[float], chance: float, comparison: Comparison, sensitive: bool
) -> None:
    check = check_sensitivity("guessing", baseline, chance, comparison)
    assert (check.p_insensitive <= 0.05) == sensitive


def test_scores_of_other_answers_are_paired() -> None:
    baseline = [0.2 + 0.01 * (n % 5) for n in range(200)]
    below, same = [score - 0.15 for score in baseline], list(baseline)
    assert check_sensitivity("unrelated", baseline, below, ONE).p_insensitive < 0.05
    assert check_sensitivity("unrelated", baseline, same, ONE).p_insensitive == 1.0


@pytest.mark.parametrize("guessing", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("comparison", [ONE, Comparison.points(0.2), Comparison.recovery(0.9)])
def test_fewest_perfect_answers(comparison: Comparison, guessing: float) -> None:
    least = min_questions_for_sensitivity(comparison, guessing, 0.05)
    assert least is not None
    enough, fewer = (
        check_sensitivity("guessing", [1.0] * n, guessing, comparison).p_insensitive <= 0.05
        for n in (least, max(1, least - 1))
    )
    assert enough
    assert not fewer or least == 1


def test_a_margin_down_to_guessing_is_never_sensitive() -> None:
    assert min_questions_for_sensitivity(Comparison.points(0.75), 0.25, 0.05) is None
    assert min_questions_for_sensitivity(Comparison.recovery(0.2), 0.25, 0.05) is None


def test_level_of_a_baseline_at_the_edge() -> None:
    """Its score less the margin is the guessing rate: seen as sensitive in at most alpha."""
    draw, runs = random.Random(5), 400
    found = sum(
        check_sensitivity(
            "guessing", [float(draw.random() < 0.26) for _ in range(200)], 0.25, ONE
        ).p_insensitive
        <= 0.05
        for _ in range(runs)
    )
    assert found / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


def test_every_chance_baseline_of_the_rows_is_checked() -> None:
    rows = [Answer(str(n), "p", 0.3, empty=0.0, unrelated=0.1 + 0.05 * (n % 2)) for n in range(100)]
    kinds = [each.kind for each in check_sensitivities(rows, 0.0, ONE)]
    assert kinds == ["nothing", "empty", "unrelated"]
    *_, alone = check_sensitivities(rows[:1], 0.0, ONE)
    assert alone == SensitivityCheck("unrelated", 0.1, p_insensitive=1.0)
    gains = own_gains(rows)
    assert gains is not None
    assert gains == pytest.approx([0.3 - 0.125] * 50)
    assert own_gains([Answer("a", "p", 1.0)]) is None

"""The plan of a fixed gate against the gate itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.fixed_power import fixed_power_plan, min_fixed_questions
from eval_gates.statistics.result import paired_interval, recovery_interval, run_fixed_test

POINTS, RECOVERY = Comparison.points, Comparison.recovery


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 0.9), st.sampled_from([0.01, 0.025, 0.05]), st.booleans())
@example(0.9, 0.01, True)  # two questions put the bound on the margin itself
def test_the_least_number_passes_and_one_less_does_not(
    margin: float, alpha: float, graded: bool
) -> None:
    least = min_fixed_questions(POINTS(margin), alpha)
    assert least is not None
    score = 0.5 if graded else 1.0
    for number, verdict in ((least, "pass"), (least - 1, "open")):
        if number:
            found = run_fixed_test([score] * number, [score] * number, POINTS(margin), alpha)
            assert found.verdict == verdict


@pytest.mark.parametrize("share", [0.9, 0.99])
@pytest.mark.parametrize("baseline", [0.3, 1.0])
def test_the_least_number_for_a_recovery(share: float, baseline: float) -> None:
    least = min_fixed_questions(RECOVERY(share), 0.05, baseline=baseline)
    assert least is not None
    for number, verdict in ((least, "pass"), (least - 1, "open")):
        scores = [baseline] * number
        assert run_fixed_test(scores, scores, RECOVERY(share), 0.05).verdict == verdict


def test_a_baseline_that_scores_nothing_has_nothing_to_keep() -> None:
    assert min_fixed_questions(RECOVERY(0.9), 0.05, baseline=0.0) is None


@pytest.mark.parametrize(("margin", "questions", "flips"), [(0.1, 100, 0.1), (0.4, 16, 0.2)])
def test_chances_of_right_or_wrong_answers_are_those_of_the_gate(
    margin: float, questions: int, flips: float
) -> None:
    plan = fixed_power_plan(POINTS(margin), alpha=0.05, questions=questions, flips=flips)
    generator = np.random.default_rng(3)
    passed = 0
    for _ in range(200):
        change = generator.choice([-1, 1, 0], p=[flips / 2, flips / 2, 1 - flips], size=questions)
        before, after = (change < 0).astype(float), (change > 0).astype(float)
        before[change == 0] = after[change == 0] = 1.0
        passed += run_fixed_test(list(before), list(after), POINTS(margin), 0.05).verdict == "pass"
    assert plan.chance_of_pass == pytest.approx(passed / 200, abs=0.1)
    assert plan.chance_of_pass + plan.chance_of_fail <= 1


def test_chances_of_graded_scores_are_those_of_the_gate() -> None:
    plan = fixed_power_plan(POINTS(0.04), alpha=0.05, questions=100, flips=1.0, flip_size=0.1)
    generator = np.random.default_rng(4)
    passed = 0
    for _ in range(60):
        after = 0.5 + 0.1 * generator.choice([-1, 1], size=100)
        passed += paired_interval([0.5] * 100, list(after), 0.05).lower > -0.04
    assert plan.chance_of_pass == pytest.approx(passed / 60, abs=0.15)
    assert 0.5 < plan.chance_of_pass < 0.95  # else the comparison would say little


def test_the_smallest_drop_seen_is_seen_and_a_smaller_one_is_not() -> None:
    plan = fixed_power_plan(POINTS(0.1), alpha=0.05, questions=200, flips=0.1)
    drop = plan.min_detectable_drop
    assert drop is not None
    assert 0.1 < drop < 0.3
    generator = np.random.default_rng(5)

    def failed(drop: float) -> float:
        times = 0
        for _ in range(100):
            lost = generator.random(200) < drop
            after = [0.0 if one else 1.0 for one in lost]
            times += run_fixed_test([1.0] * 200, after, POINTS(0.1), 0.05).verdict == "fail"
        return times / 100

    assert failed(drop + 0.03) > 0.8
    assert failed(drop - 0.03) < 0.8


def test_a_drop_that_cannot_be_is_not_seen() -> None:
    plan = fixed_power_plan(POINTS(0.2), alpha=0.05, questions=100, flips=1.0, flip_size=0.1)
    assert plan.min_detectable_drop is None
    assert "no true drop is likely to be detected" in plan.words


@pytest.mark.parametrize("questions", [1, 32, 164])
def test_what_cannot_pass_is_not_decidable(questions: int) -> None:
    plan = fixed_power_plan(POINTS(0.01), alpha=0.05, questions=questions, flips=0.04)
    assert not plan.decidable
    assert plan.min_questions is not None
    assert plan.min_questions > questions
    assert "needs more questions or a wider margin" in plan.words


def test_chances_of_a_recovery_are_those_of_the_gate() -> None:
    plan = fixed_power_plan(RECOVERY(0.8), alpha=0.05, questions=200, flips=0.2, baseline=0.6)
    generator = np.random.default_rng(6)
    passed = 0
    for _ in range(200):
        before = (generator.random(200) < 0.6).astype(float)
        # As many gains as losses, though there are more right answers than wrong ones.
        flipped = generator.random(200) < np.where(before == 1, 0.1 / 0.6, 0.1 / 0.4)
        after = np.where(flipped, 1 - before, before)
        passed += recovery_interval(list(before), list(after), 0.8, 0.05).lower > 0
    assert plan.chance_of_pass == pytest.approx(passed / 200, abs=0.12)
    assert 0.2 < plan.chance_of_pass < 0.99


@pytest.mark.parametrize(("questions", "chance"), [(30, 0.0), (5000, 1.0)])
def test_without_flips_the_number_of_questions_decides(questions: int, chance: float) -> None:
    plan = fixed_power_plan(
        RECOVERY(0.9), alpha=0.05, questions=questions, flips=0.0, flip_size=0.1, baseline=0.3
    )
    assert plan.chance_of_pass == chance


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        fixed_power_plan(POINTS(0.1), alpha=0.05, questions=0, flips=0.1)
    with pytest.raises(ValueError, match="needs `baseline`"):
        fixed_power_plan(RECOVERY(0.9), alpha=0.05, questions=10, flips=0.1)
    with pytest.raises(ValueError, match="alpha"):
        fixed_power_plan(POINTS(0.1), alpha=0.6, questions=10, flips=0.1)

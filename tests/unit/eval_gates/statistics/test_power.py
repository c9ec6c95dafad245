"""The power plan: figures known from elsewhere, the limits, and what it says."""

import math
import time

import pytest

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.power import (
    SequentialGatePower,
    find_strictest_decidable,
    min_questions,
    power_plan,
)
from eval_gates.statistics.sequential import sequential_test

POINT = Comparison.points(0.01)
FULL = 14_042


def plan(comparison: Comparison = POINT, **changed: object) -> SequentialGatePower:
    settings: dict[str, object] = {"alpha": 0.05, "questions": FULL, "flips": 0.02, "replays": 150}
    return power_plan(comparison, **{**settings, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flips", "population", "questions"),
    [(0.02, None, 1750), (0.06, None, 4500), (0.02, FULL, 1600), (0.06, FULL, 3250)],
)
def test_a_full_benchmark_takes_a_fraction_of_its_questions(
    flips: float, population: int | None, questions: float
) -> None:
    expected = plan(flips=flips, population=population, replays=500)
    assert expected.expected_questions == pytest.approx(questions, rel=0.12)
    assert expected.chance_of_pass >= 0.97
    assert expected.decidable


def test_humaneval_cannot_show_one_point() -> None:
    hopeless = plan(questions=164)
    assert not hopeless.decidable
    assert hopeless.min_questions == 547
    assert hopeless.words == (
        "this suite cannot decide a margin of 1.00 points (95 % confidence): even if no answer"
        " changes it takes 547 questions, and the cap is 164; needs more questions or a margin of"
        " 2.80 points or more"
    )
    assert plan(Comparison.points(0.03), questions=164).decidable


def test_a_finite_benchmark_is_always_decided_by_its_end() -> None:
    small = plan(questions=164, population=164)
    assert small.decidable
    assert small.chance_of_pass + small.chance_of_fail == 1
    assert small.expected_questions > 128


@pytest.mark.parametrize("planned", [None, 0.4])
@pytest.mark.parametrize("population", [None, 300, 5000])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize(
    ("comparison", "baseline"),
    [
        (Comparison.points(0.02), 1.0),
        (Comparison.points(0.3), 1.0),
        (Comparison.recovery(0.95), 1.0),
        (Comparison.recovery(0.9), 0.4),
    ],
)
def test_least_questions_are_the_real_gates(
    comparison: Comparison,
    baseline: float,
    alpha: float,
    population: int | None,
    planned: float | None,
) -> None:
    least = min_questions(comparison, alpha, population, baseline, planned)
    assert least is not None
    same = [baseline] * least
    result = sequential_test(
        same, same, comparison, alpha, population, planned=planned, bounds=False
    )
    assert (result.verdict, result.decided_at) == ("pass", least)


@pytest.mark.parametrize("baseline", [1e-300, 1e-227, 1e-12])
def test_next_to_nothing_takes_more_questions_than_anybody_has(baseline: float) -> None:
    comparison = Comparison.recovery(0.9)
    assert min_questions(comparison, 0.01, None, baseline) is None
    assert "scores nothing" in plan(comparison, baseline=baseline).words
    # With all of a benchmark's questions asked there is nothing left to guess.
    least = min_questions(comparison, 0.01, 50, baseline)
    assert least is not None
    assert 1 < least <= 50


@pytest.mark.parametrize(
    ("comparison", "baseline", "wider"),
    [
        (Comparison.points(1e-13), 1.0, "a margin of 2.80 points or more"),
        (Comparison.recovery(1 - 1e-13), 1.0, "a recovery of 97.8 % or less"),
        (Comparison.recovery(1 - 1e-13), 1e-5, "a wider margin"),
    ],
)
def test_a_margin_of_next_to_nothing_is_not_blamed_on_the_baseline(
    comparison: Comparison, baseline: float, wider: str
) -> None:
    hopeless = plan(comparison, questions=164, baseline=baseline)
    assert hopeless.min_questions is None
    assert not hopeless.decidable
    assert hopeless.words.endswith(
        f"even if no answer changes, no feasible number of questions decides it; needs {wider}"
    )


def test_a_baseline_of_nothing_has_nothing_to_recover() -> None:
    assert min_questions(Comparison.recovery(0.9), 0.05, None, 0.0) is None
    nothing = plan(Comparison.recovery(0.9), baseline=0.0)
    assert not nothing.decidable
    assert nothing.min_detectable_drop is None
    assert "scores nothing" in nothing.words


@pytest.mark.parametrize("kind", [Comparison.points, Comparison.recovery])
def test_the_strictest_margin_is_just_decidable(kind: type) -> None:
    strictest = find_strictest_decidable(kind(0.5), 0.05, 164, None)
    assert strictest is not None
    stricter = -0.001 if strictest.kind == "points" else 0.001
    least = min_questions(strictest, 0.05, None)
    more = min_questions(kind(strictest.size + stricter), 0.05, None)
    assert least is not None
    assert more is not None
    assert least <= 164 < more


def test_wide_margins_need_few_questions() -> None:
    demo = plan(Comparison.points(0.15), questions=200, flips=0.05, batch=8)
    assert demo.expected_questions < 60
    assert demo.chance_of_pass > 0.95
    tiny = plan(Comparison.points(0.4), questions=16, flips=0.05, batch=8)
    assert tiny.chance_of_pass > 0.85


def test_a_smaller_drop_is_visible_with_more_questions() -> None:
    few, many = (plan(questions=n, flips=0.05).min_detectable_drop for n in (1000, 8000))
    assert few is not None
    assert many is not None
    assert 0.01 < many < few < 0.1
    assert plan(questions=1).min_detectable_drop is None


def test_bounded_scores_need_fewer_questions_than_whole_flips() -> None:
    margin = Comparison.points(0.03)
    rouge = plan(margin, questions=2000, flips=0.5, flip_size=0.1)
    whole = plan(margin, questions=2000, flips=0.5)
    assert rouge.expected_questions < whole.expected_questions / 3


def test_many_flips_are_said_to_need_more() -> None:
    uncertain = plan(questions=1500, flips=0.1)
    assert uncertain.decidable
    assert uncertain.chance_of_pass + uncertain.chance_of_fail < 0.5
    assert uncertain.words.endswith("needs more questions or a wider margin")
    assert "10 % of the answers flip" in uncertain.words


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(questions=2000, seed=3) == plan(questions=2000, seed=3)


def test_a_plan_is_quick() -> None:
    plan()  # the first one imports
    started = time.perf_counter()
    plan(replays=300)
    assert time.perf_counter() - started < 2  # 0.15 s alone; the machine may be busy


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"alpha": math.nan}, "alpha"),
        ({"questions": 0}, "at least 1"),
        ({"population": 100}, "benchmark of 100"),
        ({"comparison": Comparison.recovery(0.9)}, "needs `baseline`"),
        ({"flips": -0.1}, "flips"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**changed)  # type: ignore[arg-type]

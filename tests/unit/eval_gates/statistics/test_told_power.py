"""What is told before a run, against replays that are drawn another way; and 164 tasks x 16."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import graded_interval
from eval_gates.statistics.power import power_plan
from eval_gates.statistics.sequential import log_evidence

Values = NDArray[np.float64]


@pytest.mark.parametrize(("margin", "flips"), [(0.03, 0.06), (0.05, 0.15)])
@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_a_benchmarks_power_is_that_over_lists_and_orders(
    margin: float, flips: float, lost: float
) -> None:
    """Told was 'passes in 100 %' of lists that flip as often one way as the other."""
    questions, runs, drop = 164, 1500, lost * margin
    plan = power_plan(
        Comparison.points(margin),
        alpha=0.05,
        questions=questions,
        flips=flips,
        population=questions,
        replays=600,
    )
    told = plan.chance_of_pass_at_half if lost else plan.chance_of_pass
    # The last question decides, and nearly always as the whole list does.
    generator = np.random.default_rng(5)
    gained = (flips - drop) / 2
    values = generator.choice(
        [-1.0, 1.0, 0.0], size=(runs, questions), p=[gained + drop, gained, 1 - flips]
    )
    log_pass, log_fail = log_evidence(values, Comparison.points(margin), questions)
    needed = -np.log(0.05)
    passed_at = np.where((log_pass >= needed).any(1), (log_pass >= needed).argmax(1), questions)
    failed_at = np.where((log_fail >= needed).any(1), (log_fail >= needed).argmax(1), questions)
    true = float((passed_at < failed_at).mean())
    assert true < 0.97
    assert told == pytest.approx(true, abs=0.05)


TASKS, SAMPLES, MARGIN = 164, 16, 0.05


def sampled(generator: np.random.Generator, drop: float) -> Values:
    """Differences of two shares of right answers, task by task, whose true mean is -drop.

    At temperature 0.2 most tasks are nearly always or nearly never solved. One in ten has another
    chance on the variant, drawn alike, so nothing is lost by that; `drop` is lost by tasks that
    the variant never solves.
    """
    first, second = 0.35, 0.25
    before = generator.beta(first, second, TASKS)
    after = np.where(generator.random(TASKS) < 0.1, generator.beta(first, second, TASKS), before)
    broken = generator.random(TASKS) < drop * (first + second) / first
    after = np.where(broken, 0.0, after)
    right = generator.binomial(SAMPLES, after) - generator.binomial(SAMPLES, before)
    return np.asarray(right / SAMPLES)


@pytest.mark.parametrize(
    ("drop", "least", "most"), [(0.0, 0.75, 1.0), (MARGIN, 0.0, 0.05 + 2 * (0.0475 / 150) ** 0.5)]
)
def test_samples_of_164_tasks(drop: float, least: float, most: float) -> None:
    """The unit is the task: 16 answers to one of them are not 16 questions."""
    generator, replays = np.random.default_rng(8), 150
    passed = sum(
        graded_interval(sampled(generator, drop).tolist(), 0.05).lower > -MARGIN
        for _ in range(replays)
    )
    assert least <= passed / replays <= most

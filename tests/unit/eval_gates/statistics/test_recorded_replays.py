"""A record has as many answers as its own gate needed, which passed: the error rate holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import findings, first_decided, planned_looks

QUESTIONS = 256
MARGIN = 0.1
ALPHA = 0.05
REPLAYS = 200
POINTS = Comparison.points(MARGIN)
Scores = NDArray[np.float64]


def flipped(scores: Scores, share: float, draw: np.random.Generator) -> Scores:
    """Both kinds of answers change equally often."""
    half = share / 2 / np.array([1 - scores.mean(), scores.mean()])
    return np.where(draw.random(scores.size) < half[scores.astype(int)], 1 - scores, scores)


def record(draw: np.random.Generator) -> Scores:
    """A variant's answers up to the look at which it passed."""
    while True:
        source = (draw.random(QUESTIONS) < 0.7).astype(float)
        variant = flipped(source, 0.06, draw)
        passed = first_decided(findings(source, variant, POINTS, ALPHA, QUESTIONS))
        if passed.state == "pass":
            return variant[: planned_looks(QUESTIONS, MARGIN)[passed.number - 1].n]


def share(state: str, loss: float) -> float:
    draw = np.random.default_rng(7)
    ends = 0
    for _ in range(REPLAYS):
        then = record(draw)
        lost = draw.random(then.size) < loss / then.mean()
        now = flipped(np.where(lost, 0.0, then), 0.01, draw)
        ends += first_decided(findings(then, now, POINTS, ALPHA, then.size)).state == state
    return ends / REPLAYS


def test_an_engine_that_loses_the_margin_passes_at_most_alpha_of_the_times() -> None:
    assert share("pass", MARGIN) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / REPLAYS) ** 0.5


def test_an_engine_that_loses_half_the_margin_hardly_fails() -> None:
    assert share("fail", MARGIN / 2) <= ALPHA

"""Replays of `fidelity` at the margin: how often a variant passes that loses just what is allowed.

Users have one to eight conversations each, which share what the variant keeps of them. An answer
has 1 to 4,000 tokens. A tenth of the users' conversations are broken.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from eval_gates.statistics.bound import p_value
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import findings, first_decided, planned_looks

REPLAYS = 200
BASELINE, BROKEN, BROKEN_SHARE = 0.989, 0.15, 0.1  # mean shares of tokens kept
SPREAD = 20.0  # of the users' shares: a beta distribution with this number of observations


def cluster_means(rng: np.random.Generator, users: int, intact: float) -> list[list[float]]:
    """Mean score of each user's conversations, of baseline and variant; [2][users]."""

    def shares(mean: float) -> np.ndarray:
        return rng.beta(SPREAD * mean, SPREAD * (1 - mean), users)

    conversations = rng.integers(1, 9, users)
    owners = np.repeat(np.arange(users), conversations)
    tokens = np.exp(rng.uniform(0, np.log(4_000), owners.size)).astype(int)
    is_broken = rng.random(users) < BROKEN_SHARE
    kept = np.where(is_broken, shares(BROKEN), shares(intact))
    return [
        list(np.bincount(owners, rng.binomial(tokens, p[owners]) / tokens) / conversations)
        for p in (shares(BASELINE), kept)
    ]


def passes(values: list[float], margin: float, alpha: float) -> bool:
    """Whether a planned look passes; by p-values, which are faster than bounds."""
    looks = planned_looks(len(values), 0.01)
    return any(p_value(values[: k.n], -margin, lowest=-1) <= alpha * k.share for k in looks)


def pass_rate(users: int, intact: float, margin: float, alpha: float) -> float:
    rng = np.random.default_rng(users)
    found = 0
    for _ in range(REPLAYS):
        before, after = cluster_means(rng, users, intact)
        values = [b - a for a, b in zip(before, after, strict=True)]
        found += passes(values, margin, alpha)
    return found / REPLAYS


@pytest.mark.parametrize(("users", "alpha", "intact"), [(48, 0.05, 0.94), (200, 0.025, 0.99)])
def test_at_the_margin_at_most_the_level_passes(users: int, alpha: float, intact: float) -> None:
    loss = BASELINE - (BROKEN_SHARE * BROKEN + (1 - BROKEN_SHARE) * intact)
    error = sqrt(alpha * (1 - alpha) / REPLAYS)
    assert pass_rate(users, intact, loss, alpha) <= alpha + 2 * error


def test_a_wider_margin_passes_what_a_tenth_of_broken_users_costs() -> None:
    assert pass_rate(100, 0.99, 0.25, 0.05) > 0.9


def test_the_replayed_decision_is_the_gates() -> None:
    before, after = cluster_means(np.random.default_rng(1), 60, 0.99)
    values = [b - a for a, b in zip(before, after, strict=True)]
    for margin in (0.05, 0.5):
        finding = first_decided(findings(before, after, Comparison.points(margin), 0.05, 60))
        assert (finding.state == "pass") == passes(values, margin, 0.05)

"""Power of the gate `cost`: one typical sample's bound, and runs that are normal around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from eval_gates.statistics.cost import CostClaim, Work, min_problems, relative_error

PROBLEM_SPREAD = 0.6  # standard deviation of ln(tokens) between problems; typical of GSM8K
_MAX_PROBLEMS = 2_000  # of the sample; the width of more is scaled
_SEED = 0


@dataclass(frozen=True)
class CostPower:
    """Chances to pass, and what limits them."""

    chance_of_pass: float  # of a variant that costs as much as the baseline
    chance_of_pass_at_half: float  # of one in the middle between that and the largest ratio
    fewest: int | None  # problems that could pass if no answer changes; None: no number could


def cost_power(
    *,
    problems: int,
    tokens: float,
    cap: int,
    solved: float,
    flips: float,
    flip_size: float,
    spread: float,
    max_ratio: float,
    alpha: float,
) -> CostPower:
    """Return the power of the gate for assumed answers.

    Args:
        tokens: of a typical answer, at most the cap.
        solved: the baseline's mean score.
        flips: share of problems whose score changes.
        flip_size: mean change of these scores.
        spread: standard deviation of ln(variant's tokens / baseline's) per problem.
    """
    baseline, candidate = _draw(
        min(problems, _MAX_PROBLEMS), tokens, cap, solved, flips, flip_size, spread
    )
    ratio = candidate.cost / baseline.cost
    saved = baseline.solved - candidate.solved
    values = candidate.tokens - ratio * (baseline.tokens - baseline.cost * saved)
    scale = math.sqrt(baseline.tokens.size / problems)
    error = scale * max(relative_error(values / ratio, baseline.tokens), 1e-9)
    width = scale * math.log(CostClaim(baseline, candidate, alpha).bound() / ratio)

    def chance(truth: float) -> float:
        if width == math.inf:
            return 0.0
        return NormalDist(sigma=error).cdf(math.log(max_ratio / truth) - width)

    return CostPower(
        chance(1.0), chance((1 + max_ratio) / 2), min_problems(baseline, cap, max_ratio, alpha)
    )


def _draw(
    n: int, tokens: float, cap: int, solved: float, flips: float, flip_size: float, spread: float
) -> tuple[Work, Work]:
    import numpy as np

    rng = np.random.default_rng(_SEED)
    before = tokens * np.exp(PROBLEM_SPREAD * rng.normal(size=n) - PROBLEM_SPREAD**2 / 2)
    after = before * np.exp(spread * rng.normal(size=n))
    after *= np.minimum(before, cap).mean() / np.minimum(after, cap).mean()  # no change on average
    right = (rng.random(n) < solved).astype(float)
    lost = (right == 1) & (rng.random(n) < flips / (2 * solved))
    gained = (right == 0) & (rng.random(n) < flips / (2 * (1 - solved)))
    changed = right - flip_size * lost + flip_size * gained
    changed += (right.mean() - changed.mean()) * (right.mean() > 0)
    return (
        Work(np.minimum(before, cap), right, cap),
        Work(np.minimum(after, cap), np.clip(changed, 0, 1), cap),
    )

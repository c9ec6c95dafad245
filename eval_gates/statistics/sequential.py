"""Paired non-inferiority test that is valid at every question and stops once it is decided.

A fixed-n test is valid at one number of questions only. This test is valid at all of them
simultaneously (see betting.py). A gate may stop early, and an open one may continue with more
questions. Half of the stake against 'inferior' may be on a planned bet (planned_bet.py). The
mirrored test has an even stake.

There are two estimands:

- `population=None`: the population that the questions are drawn from;
- `population=N`: the mean over this benchmark's N questions. It needs fewer questions, and it is
  always decided once all N are answered.

Both assume a random order of the questions. No error rate holds in file order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eval_gates.statistics.betting import RELATIVE_TOLERANCE, log_wealth
from eval_gates.statistics.comparison import Comparison

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

SequentialVerdict = Literal["pass", "fail", "open"]

MAX_PATH_POINTS = 200
REFUTED_LOG10 = 300.0
"""Stands for log10 of an infinite e-value in a path: the hypothesis is refuted, not unlikely."""

_BOUND_TOLERANCE = 1e-9


@dataclass(frozen=True)
class EProcessState:
    """State after some questions, for a plot."""

    questions: int
    mean: float
    """Mean of the comparison's values so far."""
    log10_pass: float
    """Evidence against 'inferior': the gate passes at log10(1 / alpha)."""
    log10_fail: float
    """Evidence against 'not inferior': the gate fails at log10(1 / alpha)."""


@dataclass(frozen=True)
class SequentialResult:
    """Result of the test so far, valid at any stopping point."""

    verdict: SequentialVerdict
    decided_at: int | None
    """Number of questions at which the verdict was reached; later ones do not change it."""
    n: int
    mean: float
    """Mean of the comparison's values: candidate - baseline, or candidate - r * baseline."""
    p_inferior: float
    """Anytime-valid p-value of 'mean <= threshold'; the gate passes if it is at most alpha."""
    lower: float | None
    """Anytime-valid lower bound of the mean value at level alpha; None if not requested."""
    upper: float | None
    e_process: tuple[EProcessState, ...]


def sequential_test(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
    population: int | None,
    *,
    planned: float | None = None,
    bounds: bool = True,
) -> SequentialResult:
    """Test whether the candidate is inferior, at every question up to the last one given.

    The first crossing of 1 / alpha decides, so the verdict does not depend on the batch size. Once
    all N of `population` are answered, an exact comparison decides an open gate; a mean exactly on
    the threshold fails.

    Args:
        before: the baseline's scores, in [0, 1], in the random order of the questions.
        after: the candidate's scores on the same questions.
        bounds: False omits the two bounds, which take far longer than the verdict.
    """
    import numpy as np

    check_alpha(alpha)
    values = comparison.values(before, after)
    n = values.size
    if n == 0:
        raise ValueError("there are no questions to compare")
    if population is not None and n > population:
        raise ValueError(f"{n} questions answered, but the benchmark has {population}")

    log_pass, log_fail = log_evidence(values, comparison, population, planned)
    if n == population:
        _settle_tie(values, before, after, comparison, log_pass, log_fail)
    verdict, decided_at = _first_crossing(log_pass, log_fail, alpha)
    lower, upper = (
        _bounds(values, comparison, alpha, population, planned) if bounds else (None, None)
    )
    return SequentialResult(
        verdict=verdict,
        decided_at=decided_at,
        n=n,
        mean=float(values.mean()),
        p_inferior=min(1.0, float(np.exp(-log_pass.max()))),
        lower=lower,
        upper=upper,
        e_process=_e_process_path(values, log_pass, log_fail),
    )


def log_evidence(
    values: FloatArray,
    comparison: Comparison,
    population: int | None,
    planned: float | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the log e-processes against 'inferior' and 'not inferior': each [..., n]."""
    import numpy as np

    lowest, highest, threshold = comparison.lowest, comparison.highest, comparison.threshold
    # Rounding may leave a value slightly outside its range, where the logarithm is undefined.
    up = np.maximum(values - lowest, 0.0)
    down = np.maximum(highest - values, 0.0)
    return (
        log_wealth(up, threshold - lowest, population, planned),
        log_wealth(down, highest - threshold, population),
    )


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless alpha is an error rate in (0, 0.5)."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha, the error rate, must be in (0, 0.5), not {alpha}")


def _settle_tie(
    values: FloatArray,
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    log_pass: FloatArray,
    log_fail: FloatArray,
) -> None:
    n = values.size
    if abs(float(values.mean()) - comparison.threshold) <= 2 * RELATIVE_TOLERANCE:
        passes = comparison.exact_sign(before, after) > 0
        (log_pass if passes else log_fail)[n - 1] = math.inf


def _first_crossing(
    log_pass: FloatArray, log_fail: FloatArray, alpha: float
) -> tuple[SequentialVerdict, int | None]:
    needed = -math.log(alpha)
    passed, failed = log_pass >= needed, log_fail >= needed
    pass_at = int(passed.argmax()) + 1 if passed.any() else None
    fail_at = int(failed.argmax()) + 1 if failed.any() else None
    if pass_at is not None and (fail_at is None or pass_at < fail_at):
        return "pass", pass_at
    return ("open", None) if fail_at is None else ("fail", fail_at)


def _bounds(
    values: FloatArray,
    comparison: Comparison,
    alpha: float,
    population: int | None,
    planned: float | None,
) -> tuple[float, float]:
    import numpy as np

    if values.size == population:
        return float(values.mean()), float(values.mean())
    lowest, highest = comparison.lowest, comparison.highest
    up = np.maximum(values - lowest, 0.0)
    down = np.maximum(highest - values, 0.0)
    lower = lowest + _lower_height(up, highest - lowest, alpha, population, planned)
    upper = highest - _lower_height(down, highest - lowest, alpha, population)
    mean = float(values.mean())
    return min(lower, mean), max(upper, mean)  # rounding: see _lower_height


def _lower_height(
    heights: FloatArray,
    width: float,
    alpha: float,
    population: int | None,
    planned: float | None = None,
) -> float:
    from scipy.optimize import brentq

    needed = -math.log(alpha)

    def excess(mean: float) -> float:
        # Capped: the root finder needs a finite slope beyond rejection.
        log = float(log_wealth(heights, mean, population, planned).max())
        return min(log, needed + 5) - needed

    start, end = _BOUND_TOLERANCE * width, max(float(heights.mean()), 2 * _BOUND_TOLERANCE * width)
    if excess(start) < 0:
        return 0.0
    # If the order is not random, means beyond the observed one may have been rejected earlier. A
    # bound at the observed mean is as valid, and the two bounds never cross.
    if excess(end) >= 0:
        return end
    return max(0.0, float(brentq(excess, start, end, xtol=_BOUND_TOLERANCE)) - _BOUND_TOLERANCE)


def _e_process_path(
    values: FloatArray, log_pass: FloatArray, log_fail: FloatArray
) -> tuple[EProcessState, ...]:
    import numpy as np

    n = values.size
    shown = np.unique(np.linspace(1, n, min(n, MAX_PATH_POINTS)).round().astype(int))
    means = np.cumsum(values) / np.arange(1, n + 1)

    def log10(log: float) -> float:
        return min(log / math.log(10), REFUTED_LOG10)

    return tuple(
        EProcessState(int(k), float(means[k - 1]), log10(log_pass[k - 1]), log10(log_fail[k - 1]))
        for k in shown
    )

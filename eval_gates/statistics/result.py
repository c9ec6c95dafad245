"""Result of a gate's test, for both kinds of test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import PairedInterval, graded_interval, tango_interval
from eval_gates.statistics.sequential import EProcessState, SequentialVerdict, sequential_test

SEQUENTIAL = "betting, valid at any time"
_SMALLEST_P, _LARGEST_P = 1e-12, 0.499
# Share of a recovery's error rate for the bound of the baseline's score. That bound is
# multiplied by 1 - share, so it matters little.
_BASELINE_ALPHA_SHARE = 0.1


@dataclass(frozen=True)
class GateTestResult:
    """Outcome of a test of 'the candidate is inferior', with its bounds.

    `lower` and `upper` are one-sided bounds at level `alpha` of the comparison's mean value.
    """

    verdict: SequentialVerdict
    comparison: Comparison
    alpha: float
    n: int
    decided_at: int | None
    p_value: float
    lower: float
    upper: float
    method: str
    e_process: tuple[EProcessState, ...] = ()
    planned: float | None = None
    """The bet that had half of the stake; None for an even stake, or if the test does not bet."""


def run_sequential_test(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
    population: int | None,
    planned: float | None = None,
) -> GateTestResult:
    """Run :func:`sequential_test`, which may stop at any question."""
    result = sequential_test(before, after, comparison, alpha, population, planned=planned)
    if result.lower is None or result.upper is None:
        raise ValueError("the test computed no bounds")
    return GateTestResult(
        verdict=result.verdict,
        comparison=comparison,
        alpha=alpha,
        n=result.n,
        decided_at=result.decided_at,
        p_value=result.p_inferior,
        lower=result.lower,
        upper=result.upper,
        method=SEQUENTIAL,
        e_process=result.e_process,
        planned=planned,
    )


def run_fixed_test(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
) -> GateTestResult:
    """Compare one Gaffke bound with the threshold, at a fixed number of questions."""
    values = comparison.values(before, after)
    interval = value_bounds(before, after, comparison, alpha)
    verdict: SequentialVerdict = "open"
    if interval.lower > comparison.threshold:
        verdict = "pass"
    elif interval.upper < comparison.threshold:
        verdict = "fail"

    def passes(level: float) -> bool:
        return value_bounds(before, after, comparison, level).lower > comparison.threshold

    return GateTestResult(
        verdict=verdict,
        comparison=comparison,
        alpha=alpha,
        n=len(values),
        decided_at=len(values) if verdict != "open" else None,
        p_value=_p_value(passes, alpha),
        lower=interval.lower,
        upper=interval.upper,
        method=interval.method,
    )


def value_bounds(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
) -> PairedInterval:
    """Compute bounds of the comparison's mean value."""
    if comparison.kind == "points":
        return gate_interval(before, after, alpha)
    return recovery_interval(before, after, comparison.size, alpha)


def gate_interval(before: Sequence[float], after: Sequence[float], alpha: float) -> PairedInterval:
    """Compute Gaffke's bounds; Tango's could err in 7 % of cases instead of 5 %."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return graded_interval(differences, alpha)


def paired_interval(
    before: Sequence[float], after: Sequence[float], alpha: float
) -> PairedInterval:
    """Compute Tango's interval for right-or-wrong answers, Gaffke's for other scores."""
    pairs = list(zip(before, after, strict=True))
    if all(score in (0.0, 1.0) for pair in pairs for score in pair):
        return tango_interval(
            both=pairs.count((1.0, 1.0)),
            only_baseline=pairs.count((1.0, 0.0)),
            only_candidate=pairs.count((0.0, 1.0)),
            neither=pairs.count((0.0, 0.0)),
            alpha=alpha,
        )
    return gate_interval(before, after, alpha)


def recovery_interval(
    before: Sequence[float],
    after: Sequence[float],
    share: float,
    alpha: float,
) -> PairedInterval:
    """Compute bounds of the mean of candidate - share * baseline, from two joint intervals.

    The value is the change plus (1 - share) of the baseline's score. One bound of the sum would
    count the baseline's scores as evidence about the candidate. With few flips it would often pass
    a candidate on the boundary.
    """
    change = gate_interval(before, after, (1 - _BASELINE_ALPHA_SHARE) * alpha)
    level = gate_interval([0.0] * len(before), before, _BASELINE_ALPHA_SHARE * alpha)
    rest = 1 - share
    return PairedInterval(
        change.lower + rest * level.lower,
        change.upper + rest * level.upper,
        f"{change.method} of the change, and the baseline's",
    )


def _p_value(passes: Callable[[float], bool], alpha: float) -> float:
    """Return the smallest level from 1e-12 on at which the gate would pass; 1 if none.

    It has three digits, and is at most `alpha` exactly if the gate passes at `alpha`.
    """
    if passes(alpha):
        low, high = min(_SMALLEST_P, alpha), alpha
    elif alpha < _LARGEST_P and passes(_LARGEST_P):
        low, high = alpha, _LARGEST_P
    else:
        return 1.0
    if passes(low):
        return low
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high

"""What a test found in two models' paired scores: one shape for both kinds of test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import PairedInterval, graded_interval, tango_interval
from eval_gates.statistics.sequential import EProcessState, SequentialVerdict, sequential_test

SEQUENTIAL = "betting, valid at any time"
_SMALLEST_P, _LARGEST_P = 1e-12, 0.499
# What the baseline's score may cost of a recovery's error rate; it is multiplied by 1 - share.
_ALPHA_OF_LEVEL = 0.1


@dataclass(frozen=True)
class GateTestResult:
    """The outcome of a test of 'the candidate is inferior', and the bounds that go with it.

    `lower` and `upper` are one-sided bounds at level `alpha` of the comparison's value.
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
    """The bet that had half of the stake; None: an even one, or no betting test."""


def sequential_finding(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
    population: int | None,
    planned: float | None = None,
) -> GateTestResult:
    """By the betting test, which may stop at any question; see :func:`sequential_test`."""
    result = sequential_test(before, after, comparison, alpha, population, planned=planned)
    if result.lower is None or result.upper is None:
        raise ValueError("the test was run without its bounds")
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


def fixed_finding(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
) -> GateTestResult:
    """By one bound at a number of questions fixed beforehand; Gaffke's holds for few, too."""
    values = comparison.values(before, after)
    interval = bounds_of_value(before, after, comparison, alpha)
    verdict: SequentialVerdict = "open"
    if interval.lower > comparison.threshold:
        verdict = "pass"
    elif interval.upper < comparison.threshold:
        verdict = "fail"

    def passes(level: float) -> bool:
        return bounds_of_value(before, after, comparison, level).lower > comparison.threshold

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


def bounds_of_value(
    before: Sequence[float],
    after: Sequence[float],
    comparison: Comparison,
    alpha: float,
) -> PairedInterval:
    """Bounds of the mean of what the comparison makes of each pair of scores."""
    if comparison.kind == "points":
        return deciding_interval(before, after, alpha)
    return kept_interval(before, after, comparison.size, alpha)


def deciding_interval(
    before: Sequence[float], after: Sequence[float], alpha: float
) -> PairedInterval:
    """Gaffke's bound: of right-or-wrong answers Tango's interval errs in up to 7 %, not 5."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return graded_interval(differences, alpha)


def paired_interval(
    before: Sequence[float], after: Sequence[float], alpha: float
) -> PairedInterval:
    """The usual interval: Tango's for right-or-wrong answers, Gaffke's bound for other scores."""
    pairs = list(zip(before, after, strict=True))
    if all(score in (0.0, 1.0) for pair in pairs for score in pair):
        return tango_interval(
            both=pairs.count((1.0, 1.0)),
            only_baseline=pairs.count((1.0, 0.0)),
            only_candidate=pairs.count((0.0, 1.0)),
            neither=pairs.count((0.0, 0.0)),
            alpha=alpha,
        )
    return deciding_interval(before, after, alpha)


def kept_interval(
    before: Sequence[float],
    after: Sequence[float],
    share: float,
    alpha: float,
) -> PairedInterval:
    """Bounds of the mean of candidate - share * baseline, by two intervals that hold together.

    The value is the change plus (1 - share) of the baseline's score. A bound of their sum
    would take scores of the baseline for evidence of what the candidate kept, and with few flips
    pass a candidate on the boundary far too often; the interval of the change alone does not.
    """
    change = deciding_interval(before, after, (1 - _ALPHA_OF_LEVEL) * alpha)
    level = deciding_interval([0.0] * len(before), before, _ALPHA_OF_LEVEL * alpha)
    rest = 1 - share
    return PairedInterval(
        change.lower + rest * level.lower,
        change.upper + rest * level.upper,
        f"{change.method} of the change, and the baseline's",
    )


def _p_value(passes: Callable[[float], bool], alpha: float) -> float:
    """The least level from 1e-12 on at which the gate would pass, to three figures; 1: none.

    It is at most `alpha` exactly where the gate passes at `alpha`.
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

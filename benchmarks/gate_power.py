"""False passes of a gate of answers at its margin, and what other rules do with the same answers.

    .venv/bin/python benchmarks/gate_power.py [--runs 1000]

Every population loses exactly the margin, so each pass is false. The bound is proved for values
that take two points; their chance to pass at any of four looks is exact. The other populations
search for an excess: lattices, values near 0 and a rare total loss, clusters, skewed means,
recoveries, and the worst distribution on three points that a search finds (exact probabilities).
The table judges the same recorded answers by exact McNemar, as amazon-science/LLM-Accuracy-Stats
does (arXiv 2602.10144), and by a drop of at most one point.

Prints one JSON line. Exits with 1 if a population passes more often than its level and two standard
errors. About one in forty does so by chance, so it is drawn again with another seed and four times
as many runs, and that rate counts. Takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, multinomial

from eval_gates.statistics.bound import counted_bounds, p_value
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Look, findings, first_decided, planned_looks

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Values]
LEVEL = 0.05
MARGINS = (0.01, 0.02, 0.05, 0.25)
SIZES = (8, 20, 63, 64, 164, 541, 2_000, 14_042)


def on_points(points: list[float], chances: list[float]) -> Draw:
    """Draw differences that take these points."""

    def draw(generator: np.random.Generator, n: int) -> Values:
        return generator.choice(points, size=n, p=chances)

    return draw


def losing(margin: float, flips: float) -> Draw:
    """Draw right-or-wrong changes that lose the margin."""
    flips = max(flips, margin)
    return on_points([-1, 0, 1], [(flips + margin) / 2, 1 - flips, (flips - margin) / 2])


def rare(margin: float, gain: float) -> Draw:
    """Draw a small gain, and a rare total loss."""
    lost = (margin + gain) / (1 + gain)
    return on_points([-1, gain], [lost, 1 - lost])


def lattice(margin: float, steps: int) -> Draw:
    """Draw changes of shares of that many samples."""

    def draw(generator: np.random.Generator, n: int) -> Values:
        solved = generator.beta(0.5, 0.5, n).clip(margin, 1)
        after = (solved - margin).clip(0, 1)
        change = generator.binomial(steps, after) - generator.binomial(steps, solved)
        return change / steps

    return draw


def clustered(margin: float, size: int) -> Draw:
    """Draw means of clusters whose answers fall together."""

    def draw(generator: np.random.Generator, n: int) -> Values:
        falls = generator.random(n) < 0.5
        chance = np.where(falls, 2 * margin, 0.0)
        return -generator.binomial(size, chance) / size

    return draw


def skewed(margin: float) -> Draw:
    """Draw many small gains and a tail of losses, many of them small and some total."""
    gain = min(0.02, margin)
    share = max(0.1, 2 * (margin + gain))  # of values in the tail
    mean = (margin + (1 - share) * gain) / share

    def draw(generator: np.random.Generator, n: int) -> Values:
        tail = generator.beta(0.5, 0.5 * (1 - mean) / mean, n)
        return np.where(generator.random(n) < share, -tail, gain)

    return draw


def populations(margin: float) -> Iterator[tuple[str, Draw]]:
    """Yield populations that lose exactly the margin."""
    for flips in (margin, 0.04, 0.3):
        yield f"right or wrong, {max(flips, margin):g} flip", losing(margin, flips)
    for gain in (0.001, 0.05):
        yield f"-1 or {gain:g}", rare(margin, gain)
    yield "16 samples", lattice(margin, 16)
    yield "clusters of 8", clustered(margin, 8)
    yield "skewed", skewed(margin)


class Replay:
    """Judges many draws: a pass is a p-value below the level of a look, and equal draws are one."""

    def __init__(self, comparison: Comparison, alpha: float) -> None:
        self.comparison, self.alpha = comparison, alpha
        self._known: dict[bytes, float] = {}

    def passes(self, before: Values, after: Values, *, whole: bool = False) -> bool:
        """Return whether the gate passes; `whole` by the gate's own function."""
        if whole:
            scores = before.tolist(), after.tolist()
            every_look = findings(*scores, self.comparison, self.alpha, len(before))
            return first_decided(every_look).state == "pass"
        values = after - self.comparison.weight * before
        looks = planned_looks(len(values), self.comparison.margin)
        return any(self._p_value(values[: look.n]) < self.alpha * look.share for look in looks)

    def _p_value(self, values: Values) -> float:
        key = np.sort(values).tobytes()
        if key not in self._known:
            lowest, threshold = self.comparison.lowest, self.comparison.threshold
            self._known[key] = p_value(values, threshold, lowest=lowest)
        return self._known[key]


def pass_rate(draw: Draw, margin: float, n: int, runs: int, seed: int) -> float:
    """Return the share of runs that pass at the planned looks."""
    generator, replay = np.random.default_rng(seed), Replay(Comparison.points(margin), LEVEL)
    passed = 0
    for run in range(runs):
        values = draw(generator, n).clip(-1, 1)
        before, after = np.maximum(-values, 0), np.maximum(values, 0)
        found = replay.passes(before, after)
        if run < 2 and found != replay.passes(before, after, whole=True):
            raise AssertionError("the p-value and the gate differ")
        passed += found
    return passed / runs


def recovery_rate(
    share: float, baseline: float, flips: float, n: int, runs: int, seed: int
) -> float:
    """Return the share of passes of a candidate that keeps exactly the share of the baseline."""
    generator, replay = np.random.default_rng(seed), Replay(Comparison.recovery(share), LEVEL)
    lost = (flips + (1 - share) * baseline) / 2
    gained = flips - lost
    passed = 0
    for _ in range(runs):
        drawn = generator.choice(
            4, size=n, p=[lost, gained, baseline - lost, 1 - baseline - gained]
        )
        before, after = np.isin(drawn, (0, 2)).astype(float), np.isin(drawn, (1, 2)).astype(float)
        passed += replay.passes(before, after)
    return passed / runs


def worst_on_three_points(margin: float, n: int) -> tuple[float, list[float]]:
    """Return the largest exact chance of a false pass on {-1, low, high}, and its distribution."""
    worst, found = 0.0, [0.0]
    counts = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)])
    for low in (-0.6, -0.2, -0.05, 0.0):
        for high in (0.02, 0.1, 0.4, 1.0):
            passes = np.array(
                [
                    p_value(np.repeat([-1.0, low, high], count), -margin, lowest=-1.0) < LEVEL
                    for count in counts
                ]
            )
            for top in np.linspace(0, 0.98, 50):
                # The mean is -margin: -lost + low * (1 - lost - top) + high * top.
                lost = (margin + low * (1 - top) + high * top) / (1 + low)
                if not 0 <= lost <= 1 - top:
                    continue
                chance = [lost, 1 - lost - top, top]
                rate = float(multinomial.pmf(counts[passes], n, chance).sum())
                if rate > worst:
                    worst, found = rate, [low, high, *chance]
    return worst, found


def exact_looks(low: float, high: float, margin: float, n: int, alpha: float) -> float:
    """Return the exact chance of a false pass at any look of values that are `low` or `high`."""
    chance = (-margin - low) / (high - low)
    open_ones, least, before, passed = np.ones(1), 0, 0, 0.0

    def shows(highs: int, look: Look) -> bool:
        counts = {low: look.n - highs, high: highs}
        values = [value for value, count in counts.items() if count]
        times = [count for count in counts.values() if count]
        return counted_bounds(values, times, alpha * look.share).lower > -margin

    for look in planned_looks(n, margin):
        new = look.n - before
        first, last = (int(binom.ppf(part, new, chance)) for part in (1e-13, 1 - 1e-13))
        open_ones = np.convolve(open_ones, binom.pmf(np.arange(first, last + 1), new, chance))
        least, before = least + first, look.n
        needed = bisect_left(
            range(look.n + 1), True, key=lambda highs, look=look: shows(highs, look)
        )
        passes = np.arange(least, least + open_ones.size) >= needed
        passed += float(open_ones[passes].sum())
        open_ones = np.where(passes, 0.0, open_ones)
    return passed


def compare_rules(runs: int) -> list[dict[str, object]]:
    """Return what three rules do with the same answers to 14,042 questions; margin 1 point."""
    rows, generator, n = [], np.random.default_rng(5), 14_042
    for name, flips, loss in (
        ("lossless", 0.04, 0.0),
        ("good", 0.04, 0.003),
        ("at the margin", 0.06, 0.01),
        ("bad", 0.06, 0.02),
    ):
        counts = dict.fromkeys(("gate passes", "gate fails", "mcnemar passes", "drop passes"), 0)
        for _ in range(runs):
            change = losing(loss, flips)(generator, n)
            before, after = (change < 0).astype(float), (change > 0).astype(float)
            found = first_decided(findings(before, after, Comparison.points(0.01), LEVEL, n))  # type: ignore[arg-type]
            lost, gained = int(before.sum()), int(after.sum())
            p = binomtest(lost, lost + gained, alternative="greater").pvalue
            counts["gate passes"] += found.state == "pass"
            counts["gate fails"] += found.state == "fail"
            counts["mcnemar passes"] += p > LEVEL
            counts["drop passes"] += lost - gained < 0.01 * n
        shares = {key: round(count / runs, 3) for key, count in counts.items()}
        rows.append({"variant": name, "flips": flips, "loss": loss, **shares})
    return rows


def within(runs: int) -> float:
    """Return the level and two standard errors."""
    return LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


def main() -> int:
    """Replay, print one line, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    rates: dict[str, float] = {}
    over: dict[str, float] = {}

    def measure(name: str, rate: Callable[[int, int], float], few: int) -> None:
        """Note the share of false passes: of that many runs, with a seed."""
        rates[name] = rate(few, len(rates))
        if rates[name] > within(few) and (again := rate(4 * few, 10_000)) > within(4 * few):
            over[name] = again

    for margin in MARGINS:
        for n in SIZES:
            few = max(200, min(runs, runs * 600 // n))
            for name, draw in populations(margin):
                measure(f"{name}, {n} at {margin:g}", partial(pass_rate, draw, margin, n), few)
    for share, baseline, flips in ((0.99, 0.65, 0.04), (0.95, 0.3, 0.1), (0.9, 0.9, 0.12)):
        for n in (64, 541, 2000):
            rate = partial(recovery_rate, share, baseline, flips, n)
            measure(f"recovery {share:g} of {baseline:g}, {n}", rate, min(runs, 400))
    exact = {
        f"{n} at {margin:g}": worst_on_three_points(margin, n)
        for margin in (0.05, 0.25)
        for n in (8, 14, 20)
    }
    looks = {
        f"{low:g} or {high:g}, {n} at {margin:g}": exact_looks(low, high, margin, n, LEVEL) / LEVEL
        for margin in (0.02, 0.05, 0.25)
        for n in (4_096, 14_042)
        for low, high in ((-1, 0), (-1, 1), (-1, 0.05), (-0.5, 0.5))
    }
    over |= {f"looks, {name}": share for name, share in looks.items() if share > 1}
    over |= {f"exact, {name}": rate for name, (rate, _) in exact.items() if rate > LEVEL}
    print(
        json.dumps(
            {
                "benchmark": "gate_power",
                "level": LEVEL,
                "populations": len(rates),
                "largest_false_pass": max(rates.items(), key=lambda item: item[1]),
                "worst_on_three_points": exact,
                "largest_share_of_alpha_at_four_looks": max(looks.items(), key=lambda x: x[1]),
                "beyond_the_level": over,
                "rules": compare_rules(min(runs, 300)),
                "passed": not over,
            }
        )
    )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

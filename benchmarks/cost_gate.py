"""How often the gate `cost` is wrong, and how often it passes good variants: simulated answers.

    .venv/bin/python benchmarks/cost_gate.py
    .venv/bin/python benchmarks/cost_gate.py --replays 2000 --seed 7

Each population has a variant that needs exactly `RATIO` times the tokens per solved task (a pass is
then false), or exactly as many (a pass is then right). Lengths are lognormal, Pareto, or mixed with
endless answers, all cut at the cap; an answer at the cap is unsolved. A replay draws problems.
Four bounds judge the same replays, each at alpha 5 %:

- cost:        the project's: Gaffke's bound at each price of a solved task in its interval;
- two steps:   a bound of the ratio of solved shares, then one of the tokens, by Bonferroni;
- delta t:     the delta method with Student's quantile, which is close to Fieller's bound;
- bootstrap t: the same statistic with quantiles of its bootstrap.

Nothing is served. The last line is JSON. The exit code is 0 if `cost` has at most 5 % plus two
standard errors of false passes, and passes at least 80 % of the good variants of `GSM8K`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eval_gates.statistics.cost import CostClaim, Work
from eval_gates.statistics.gaffke import log_chance_below

ALPHA, RATIO, CAP, PROBLEMS = 0.05, 1.15, 8192, 20_000
MEDIAN = 300.0  # tokens
BOOTSTRAPS = 199
GSM8K, TARGET_POWER = "GSM8K's size", 0.8

Floats = NDArray[np.float64]
Population = tuple[Floats, Floats, Floats, Floats]
"""Tokens and solved share of the baseline, then of the variant: [problems] each."""


@dataclass(frozen=True)
class Scenario:
    """Distribution of the answers, and the number of problems of one replay."""

    name: str
    n: int
    lengths: str = "lognormal"
    sigma: float = 1.0
    """Standard deviation of ln(tokens) over all answers."""
    solved: float = 0.8
    k: int = 1
    correlated: bool = True
    """Whether both sides' answers to a problem are related, in length and in being solved."""
    fewer_solved: float = 0.0
    """Share of solved tasks that the variant loses; the rest of the ratio is longer answers."""


SCENARIOS = (
    Scenario(GSM8K, 1319, sigma=0.6, solved=0.9),
    Scenario("50 problems", 50),
    Scenario("50 problems, wide", 50, sigma=2.0),
    Scenario("200, 5 % solved", 200, solved=0.05),
    Scenario("200, 95 % solved, wide", 200, sigma=2.0, solved=0.95),
    Scenario("200, unrelated", 200, solved=0.5, correlated=False),
    Scenario("200, Pareto", 200, lengths="pareto"),
    Scenario("50, endless answers", 50, lengths="endless", sigma=0.1, solved=0.95),
    Scenario("200, endless answers", 200, lengths="endless", sigma=0.1, solved=0.95),
    Scenario("60, k = 16", 60, sigma=0.8, solved=0.5, k=16),
    Scenario("60, k = 64, unrelated", 60, sigma=2.0, solved=0.5, k=64, correlated=False),
    Scenario("500, fewer solved", 500, solved=0.5, fewer_solved=0.1),
    Scenario("2000, wide, 50 % solved", 2000, sigma=2.0, solved=0.5),
)


def build_population(scenario: Scenario, ratio: float, seed: int) -> Population:
    """Return a population in which the variant's cost is `ratio` times the baseline's."""
    rng = np.random.default_rng([seed, zlib.crc32(scenario.name.encode())])
    shape = (PROBLEMS, scenario.k)
    hard = rng.normal(size=(PROBLEMS, 1))
    loops = rng.random(shape)
    before, after = (_draw_lengths(scenario, hard, shape, rng) for _ in range(2))
    chance = np.clip(scenario.solved + 0.3 * scenario.solved * (1 - scenario.solved) * hard, 0, 1)
    right_before = rng.random(shape) < chance
    fresh = rng.random(shape) < chance
    flips = rng.random(shape) < (0.1 if scenario.correlated else 1.0)
    right_after = np.where(flips, fresh, right_before)
    right_after &= rng.random(shape) >= scenario.fewer_solved

    def at(size: float) -> Population:
        """Make the variant's answers longer, or more of them endless, by that."""
        longer = np.minimum(after, CAP)
        if scenario.lengths == "endless":
            longer = np.where(loops < size, CAP, longer)
        else:
            longer = np.minimum(after * size, CAP)
        shorter = np.minimum(before, CAP)
        solved = (right_before & (shorter < CAP), right_after & (longer < CAP))
        return (
            shorter.mean(axis=1),
            solved[0].mean(axis=1),
            longer.mean(axis=1),
            solved[1].mean(axis=1),
        )

    low, high = (0.0, 1.0) if scenario.lengths == "endless" else (0.01, 100.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if true_ratio(at(middle)) < ratio else (low, middle)
    return at(high)


def _draw_lengths(
    scenario: Scenario, hard: Floats, shape: tuple[int, int], rng: np.random.Generator
) -> Floats:
    shared = 0.9 if scenario.correlated else 0.0
    normal = math.sqrt(shared) * hard + math.sqrt(1 - shared) * rng.normal(size=shape)
    if scenario.lengths == "pareto":  # by the normal's own quantiles, to stay related
        from scipy.stats import norm

        return np.asarray(MEDIAN / 2 * norm.sf(normal) ** (-1 / 1.2))
    return np.asarray(MEDIAN * np.exp(scenario.sigma * normal))


def true_ratio(population: Population) -> float:
    """Return the variant's tokens per solved task over the baseline's."""
    before, right_before, after, right_after = (float(each.mean()) for each in population)
    return (after / right_after) / (before / right_before)


def cost_passes(sample: Population) -> bool:
    """Decide by the project's bound."""
    baseline, candidate = Work(*sample[:2], CAP), Work(*sample[2:], CAP)
    return CostClaim(baseline, candidate, ALPHA).holds(RATIO)


def two_steps_pass(sample: Population) -> bool:
    """Bound q = E[S_b] / E[S_c] at alpha / 2, then test E[q T_c - r T_b] at alpha / 2."""
    before, right_before, after, right_after = sample

    def chance(values: Floats, worst: float) -> float:
        points = np.append(-values, -worst) / worst
        return math.exp(log_chance_below(points, np.ones(points.size), 0.0))

    if not right_after.any():
        return False
    low = float(right_before.sum() / right_after.sum())
    high = RATIO * float(before.sum() / after.sum())  # a larger q cannot pass
    if low >= high:
        return False
    for _ in range(8):
        middle = (low + high) / 2
        is_above = chance(right_before - middle * right_after, 1.0) <= ALPHA / 2
        low, high = (low, middle) if is_above else (middle, high)
    return chance(high * after - RATIO * before, high * CAP) <= ALPHA / 2


def statistic(sample: Population, centre: float) -> tuple[NDArray[np.float64], Floats]:
    """Return ln(ratio) minus `centre` over its standard error, and ln(ratio); over the last axis.

    Samples without a solved task give infinity, which passes nothing.
    """
    with np.errstate(all="ignore"):
        means = [each.mean(axis=-1, keepdims=True) for each in sample]
        before, right_before, after, right_after = (
            each / mean for each, mean in zip(sample, means, strict=True)
        )
        influence = after - right_after - before + right_before
        error = influence.std(axis=-1, ddof=1) / math.sqrt(influence.shape[-1])
        found = np.log(means[2] * means[1] / (means[3] * means[0]))[..., 0]
        return np.nan_to_num((found - centre) / error, nan=math.inf), found


def delta_passes(sample: Population) -> bool:
    """Decide by the delta method with Student's quantile."""
    from scipy.stats import t

    return bool(statistic(sample, math.log(RATIO))[0] < t.ppf(ALPHA, sample[0].size - 1))


def bootstrap_passes(sample: Population, rng: np.random.Generator) -> bool:
    """Decide by the bootstrap's quantile of the studentized ln(ratio)."""
    n = sample[0].size
    drawn = rng.integers(0, n, size=(BOOTSTRAPS, n))
    found, centre = statistic(sample, math.log(RATIO))
    if not found < 0:
        return False
    again = statistic(tuple(each[drawn] for each in sample), float(centre))[0]  # type: ignore[arg-type]
    return bool(found < np.quantile(again, ALPHA))


def measure(scenario: Scenario, ratio: float, replays: int, seed: int) -> dict[str, float]:
    """Return the share of replays that each bound passes."""
    population = build_population(scenario, ratio, seed)
    rng = np.random.default_rng([seed, zlib.crc32(scenario.name.encode()), int(1000 * ratio)])
    methods: dict[str, Callable[[Population], bool]] = {
        "cost": cost_passes,
        "two steps": two_steps_pass,
        "delta t": delta_passes,
        "bootstrap t": lambda sample: bootstrap_passes(sample, rng),
    }
    passes = dict.fromkeys(methods, 0)
    for _ in range(replays):
        drawn = rng.integers(0, PROBLEMS, scenario.n)
        sample: Population = tuple(each[drawn] for each in population)  # type: ignore[assignment]
        for name, method in methods.items():
            passes[name] += method(sample)
    return {name: count / replays for name, count in passes.items()}


def rows(replays: int, seed: int) -> Iterator[tuple[Scenario, dict[str, float], dict[str, float]]]:
    """Yield each scenario with its false passes and its power."""
    for scenario in SCENARIOS:
        yield (
            scenario,
            measure(scenario, RATIO, replays, seed),
            measure(replace(scenario, fewer_solved=0.0), 1.0, replays, seed),
        )


def main() -> int:
    """Print the table and the JSON line; 0 if the targets are met, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=1000, help="of each row (default: 1000)")
    parser.add_argument("--seed", type=int, default=20240814, help="of the answers")
    arguments = parser.parse_args()
    if arguments.replays < 2:
        parser.error("--replays must be at least 2")
    most = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / arguments.replays)
    names = ("cost", "two steps", "delta t", "bootstrap t")
    print(f"{'passes in %':26s}" + f"{'at a ratio of ' + str(RATIO) + ' (false)':>48s}", end="")
    print(f"{'at a ratio of 1 (right)':>48s}")
    print(" " * 26 + "".join(f"{name:>12s}" for name in (*names, *names)))
    figures, met = {}, True
    for scenario, wrong, right in rows(arguments.replays, arguments.seed):
        shares = (*wrong.values(), *right.values())
        print(f"{scenario.name:26s}" + "".join(f"{100 * s:12.1f}" for s in shares), flush=True)
        figures[scenario.name] = {"false_passes": wrong, "power": right}
        met &= wrong["cost"] <= most and (scenario.name != GSM8K or right["cost"] >= TARGET_POWER)
    summary = {"replays": arguments.replays, "seed": arguments.seed, **figures, "targets_met": met}
    print(json.dumps(summary))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

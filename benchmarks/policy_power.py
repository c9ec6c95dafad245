"""Share of variants that the carried policies let through: simulated runs of all their suites.

    .venv/bin/python benchmarks/policy_power.py
    .venv/bin/python benchmarks/policy_power.py --replays 500 --policy strict

Each run draws the answers of one variant to every blocking suite and applies the suite's own test
at the level of a run of one and of two variants. Nothing is served. 2,000 runs take two minutes on
one core. The last line is JSON.

The variants:
- same:      4 % of MMLU's answers flip, nothing is lost;
- fp8:       FP8 weights with an FP8 KV cache: 4 % flip, 0.3 points of MMLU and ROUGE-L and 0.8
             points of the code problems are lost;
- awq:       4-bit weights: 10 % flip, 0.8 points of MMLU, 0.5 of ROUGE-L and 2 of code are lost;
- margin:    every suite truly loses its FP8 margin, so each pass is an error of that suite.

Right-or-wrong answers: MMLU, baseline 65 %. In ROUGE-L, 80 % of the scores move by a normal change
with standard deviation 0.1. A code problem's chance of a right answer is drawn from beta(0.35,
0.25), as nearly always or nearly never solved; one in ten has another chance on the variant. What
is lost is lost by problems that the variant never solves. The standard deviation of a problem's
change is 0.20 if nothing is lost. Other suites have right-or-wrong answers, whose flips and losses
are in GENERATED, with the reasons in recipes/policies/general.yaml and reasoning.yaml.

The gate on costs: lengths are lognormal between problems (standard deviation of ln 0.6) and between
two answers to one problem (0.4), 1,200 tokens on average, and cut at the cap. One answer in ten has
another chance on the variant. The variants' answers are longer by the factors LONGER, or by the
whole ratio for `margin`. It is simulated in COST_RUNS runs, as one takes a quarter of a second.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval_gates.planned_bets import planned_bet_of
from eval_gates.statistics.cost import CostClaim, Work
from eval_gates.statistics.gaffke import log_chance_below
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.statistics.simulation import PairedOutcomes, SimulatedRuns, outcomes, simulate_runs
from eval_gates.stopping import comparison_of
from eval_gates.suites.code_suite import CodeSuite
from eval_gates.suites.generation import GeneratingTask
from recipes import catalog
from recipes.policy import AnySuite, Policy
from recipes.schema import Family

QUESTIONS = {
    **{"mmlu": 14_042, "mbpp": 542, "humaneval": 164, "rouge": 11_490},
    # BFCL has 3,641 cases over 2,116 lists of functions; a list is one value.
    **{"ifeval": 541, "gsm8k": 1_319, "mmlu_pro": 12_032, "tools": 2_116, "needles": 600},
}
MMLU_BASELINE, ROUGE_MOVES, ROUGE_CHANGE = 0.65, 0.8, 0.1
SOLVED = (0.35, 0.25)  # of the beta distribution of a problem's chance of a right answer
OTHER_CHANCE = 0.1  # share of the problems that have another chance on the variant
LEAST = 0.85  # of `fp8`, that `default` lets through
MIN_SHARE = 0.8  # of `fp8` and of `awq`, that general, reasoning and code let through
BLOCKS = 110
LONGER = {"same": 1.0, "fp8": 1.02, "awq": 1.05}
COST_RUNS, PROBLEM_SPREAD, ANSWER_SPREAD, TOKENS, COST_SOLVED = 100, 0.6, 0.4, 1200, 0.8

Passed = NDArray[np.bool_]


@dataclass(frozen=True)
class Variant:
    """What a variant truly loses; None: each suite's margin."""

    name: str
    family: Family
    flips: float
    losses: dict[str, float] | None

    def loss(self, suite: AnySuite) -> float:
        """Return the true drop of the mean score on that suite."""
        if self.losses is None:
            return comparison_of(suite.margins[self.family]).allowed_drop(MMLU_BASELINE)
        return self.losses["code" if isinstance(suite, CodeSuite) else suite.kind]


@dataclass(frozen=True)
class Generated:
    """What changes in a suite's generated answers: shares of whole answers."""

    flips: dict[Family, float]
    losses: dict[Family, float]


GENERATED = {
    "ifeval": Generated({"fp8": 0.08, "int4": 0.12}, {"fp8": 0.005, "int4": 0.010}),
    "gsm8k": Generated({"fp8": 0.06, "int4": 0.10}, {"fp8": 0.005, "int4": 0.010}),
    "tools": Generated({"fp8": 0.04, "int4": 0.07}, {"fp8": 0.003, "int4": 0.007}),
    "needles": Generated({"fp8": 0.02, "int4": 0.04}, {"fp8": 0.003, "int4": 0.007}),
    "mmlu_pro": Generated({"fp8": 0.14, "int4": 0.18}, {"fp8": 0.005, "int4": 0.010}),
    # Four answers to each problem.
    "gsm8k, sampled": Generated({"fp8": 0.04, "int4": 0.05}, {"fp8": 0.003, "int4": 0.008}),
}

VARIANTS = (
    Variant("same", "fp8", 0.04, {"mmlu": 0.0, "code": 0.0, "rouge": 0.0}),
    Variant("fp8", "fp8", 0.04, {"mmlu": 0.003, "code": 0.008, "rouge": 0.003}),
    Variant("awq", "int4", 0.10, {"mmlu": 0.008, "code": 0.02, "rouge": 0.005}),
    Variant("margin", "fp8", 0.04, None),
)


def let_through(suite: AnySuite, variant: Variant, alpha: float, runs: int, seed: int) -> Passed:
    """Which of the runs the suite lets through: critical ones pass, supporting ones do not fail."""
    if isinstance(suite, CodeSuite) and suite.samples > 1:
        return code_passes(suite, variant, alpha, runs, seed)
    if suite.kind in GENERATED:
        return generated_passes(suite, variant, alpha, runs, seed)
    found = sequential(suite, variant, alpha, runs, seed)
    return found.passed if suite.tier == "critical" else ~found.failed


def sequential(
    suite: AnySuite, variant: Variant, alpha: float, runs: int, seed: int
) -> SimulatedRuns:
    """Apply the suite's sequential test, with a look after each of about 110 blocks."""
    comparison, drop = comparison_of(suite.margins[variant.family]), variant.loss(suite)
    available = QUESTIONS[suite.kind]
    if suite.kind == "rouge":
        drawn = rouge_outcomes(drop)
    else:
        drawn = outcomes(comparison, variant.flips, 1.0, drop, MMLU_BASELINE)
    return simulate_runs(
        drawn,
        comparison,
        alpha=alpha,
        questions=min(suite.questions or available, available),
        population=available if suite.about == "benchmark" else None,
        runs=runs,
        blocks=BLOCKS,
        seed=seed,
        planned=planned_bet_of(suite, variant.family),
    )


def rouge_outcomes(drop: float) -> PairedOutcomes:
    """Return changes of a summary's score on a grid: most move, by a normal change."""
    grid = np.linspace(-0.4, 0.4, 33)
    weights = np.exp(-(((grid + drop / ROUGE_MOVES) / ROUGE_CHANGE) ** 2) / 2)
    chances = ROUGE_MOVES * weights / weights.sum()
    chances[grid.size // 2] += 1 - ROUGE_MOVES
    return PairedOutcomes(tuple(grid.tolist()), tuple(chances.tolist()))


def code_changes(
    generator: np.random.Generator, problems: int, samples: int, drop: float
) -> NDArray[np.int64]:
    """By problem, right answers of the variant less those of the baseline."""
    before = generator.beta(*SOLVED, problems)
    has_other = generator.random(problems) < OTHER_CHANCE
    after = np.where(has_other, generator.beta(*SOLVED, problems), before)
    is_broken = generator.random(problems) < drop * sum(SOLVED) / SOLVED[0]
    after = np.where(is_broken, 0.0, after)
    return np.asarray(generator.binomial(samples, after) - generator.binomial(samples, before))


def code_passes(
    suite: CodeSuite, variant: Variant, alpha: float, runs: int, seed: int, problems: int = 0
) -> Passed:
    """Apply the fixed test: Gaffke's bound lies above the margin."""
    margin = comparison_of(suite.margins[variant.family]).size
    generator, passed = np.random.default_rng(seed), np.empty(runs, dtype=bool)
    for run in range(runs):
        drawn = code_changes(
            generator, problems or QUESTIONS[suite.kind], suite.samples, variant.loss(suite)
        )
        values, times = np.unique(drawn, return_counts=True)
        points = np.append(values / suite.samples, -1.0)
        chance = log_chance_below(points, np.append(times, 1).astype(float), -margin)
        passed[run] = chance < math.log(alpha)
    return passed


def generated_passes(
    suite: AnySuite, variant: Variant, alpha: float, runs: int, seed: int
) -> Passed:
    """Apply the fixed test to right-or-wrong answers."""
    if suite.test != "fixed" or suite.tier != "critical":
        raise ValueError(f"{suite.kind} is simulated as a critical suite with a fixed test")
    samples = suite.samples if isinstance(suite, GeneratingTask) else 1
    assumed = GENERATED[suite.kind if samples == 1 else f"{suite.kind}, sampled"]
    margin = comparison_of(suite.margins[variant.family]).size
    loss = margin if variant.losses is None else assumed.losses[variant.family]
    loss = 0.0 if variant.name == "same" else loss
    flips = max(assumed.flips[variant.family], loss)
    chances = [(flips + loss) / 2, 1 - flips, (flips - loss) / 2]
    questions = min(suite.questions or QUESTIONS[suite.kind], QUESTIONS[suite.kind])
    drawn = np.random.default_rng(seed).multinomial(questions, chances, size=runs)
    found, places = np.unique(drawn, axis=0, return_inverse=True)
    values = np.array([-1.0, 0.0, 1.0])
    passed = [
        log_chance_below(values[times > 0], times[times > 0].astype(float), -margin)
        < math.log(alpha)
        for times in found + np.array([1, 0, 0])
    ]
    return np.array(passed)[places]


def cost_passes(
    policy: Policy, name: str, variant: Variant, alpha: float, runs: int, seed: int
) -> Passed:
    """Apply the gate on costs of one suite to simulated answers."""
    suite, gate = policy.suites[name], policy.cost
    assert gate is not None
    assert isinstance(suite, GeneratingTask)
    assert isinstance(suite.max_tokens, int)
    ratio = gate.max_ratio[variant.family]
    shape, cap = (QUESTIONS[suite.kind], suite.samples), suite.max_tokens
    rng, passed = np.random.default_rng(seed), []
    for _ in range(runs):
        hard = rng.normal(size=(shape[0], 1))
        chance = np.clip(COST_SOLVED + 0.05 * hard, 0, 1)
        sides, right = [], rng.random(shape) < chance
        for factor in (1.0, LONGER.get(variant.name, ratio)):
            spread = ANSWER_SPREAD / math.sqrt(2)  # of each side, so that of their ratio is whole
            logs = PROBLEM_SPREAD * hard + spread * rng.normal(size=shape)
            tokens = factor * TOKENS * np.exp(logs - (PROBLEM_SPREAD**2 + spread**2) / 2)
            is_whole = tokens < cap
            solved = (right & is_whole).mean(axis=1)
            sides.append(Work(np.minimum(tokens, cap).mean(axis=1), solved, cap))
            right = np.where(rng.random(shape) < OTHER_CHANCE, rng.random(shape) < chance, right)
        passed.append(CostClaim(sides[0], sides[1], alpha).holds(ratio))
    return np.array(passed)


def measure(
    policy: Policy, variant: Variant, tried: int, runs: int, seed: int, cost_runs: int = 0
) -> dict[str, float]:
    """By blocking suite, the share of runs let through; `all`: by all of them together.

    Args:
        cost_runs: of the gate on costs; 0 leaves it out.
    """
    alpha, together, found = (
        gate_level(policy.alpha, policy.attempts, 1, tried),
        np.ones(runs, dtype=bool),
        {},
    )
    for number, (name, suite) in enumerate(policy.suites.items()):
        if suite.tier == "advisory":
            continue
        passed = let_through(suite, variant, alpha, runs, seed + number)
        found[name] = float(passed.mean())
        together &= passed
    for name in policy.cost.suites if policy.cost is not None and cost_runs else ():
        passed = cost_passes(policy, name, variant, alpha, cost_runs, seed + len(found))
        found[f"cost {name}"] = float(passed.mean())
        together &= np.resize(passed, runs)
    return {**found, "all": float(together.mean())}


def main() -> int:
    """Print a table and a JSON line; 0 if `default` lets enough of `fp8` through and none errs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=2000, help="simulated runs (default: 2000)")
    parser.add_argument("--seed", type=int, default=20240814, help="of the answers")
    parser.add_argument("--policy", action="append", help="default: all but demo")
    arguments = parser.parse_args()
    results, met = {}, True
    for name in arguments.policy or ("default", "strict", "general", "reasoning", "code"):
        policy = catalog.load_policy(name)
        most = policy.alpha + 2 * math.sqrt(policy.alpha * (1 - policy.alpha) / arguments.replays)
        critical = [each for each, suite in policy.suites.items() if suite.tier == "critical"]
        for variant in VARIANTS:
            for tried in (1, 2):
                runs = arguments.replays
                costs = min(runs, COST_RUNS)
                found = measure(policy, variant, tried, runs, arguments.seed, costs)
                results[f"{name}, {variant.name}, {tried} in the run"] = found
                shares = ", ".join(f"{each} {100 * share:.1f} %" for each, share in found.items())
                print(f"{name:<8}{variant.name:<8}{tried} in the run: {shares}", flush=True)
                if variant.name == "fp8" and name == "default":
                    met &= found["all"] >= LEAST
                if variant.name in ("fp8", "awq") and name in ("general", "reasoning", "code"):
                    met &= found["all"] >= MIN_SHARE
                if variant.name == "margin":
                    met &= all(found[each] <= most for each in critical)
    print(json.dumps({"replays": arguments.replays, "seed": arguments.seed, **results}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

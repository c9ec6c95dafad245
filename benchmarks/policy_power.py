"""How often the carried policies pass their usual variants: replays next to the plan's formula.

    .venv/bin/python benchmarks/policy_power.py [--runs 400]

For every suite of a policy, answers of the policy's `usual` variant are drawn and judged at the
planned looks, at the level of two variants in a run. Right-or-wrong answers flip; a program's score
is its share of 16 samples, with difficulties that differ; a ROUGE score changes by a normal amount
of 0.1. The pass rate of all blocking suites together is the product over suites. `promotions` is
that product and the replayed pass rate of the throughput ratio, at true ratios of 1.00 and 1.05.

Prints one JSON line. Exits with 1 if `default`, `general`, `code` or `reasoning` pass a usual
variant in less than 90 %, `strict` in less than 80 %, or if what `prepare plan` tells differs from
the replays by more than 7 points.
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import numpy as np
from gate_power import Replay
from numpy.typing import NDArray
from speed_power import TYPICAL, normal, passes

from eval_gates.statistics.multiplicity import gate_level
from eval_gates.stopping import comparison_of
from pipeline.plan.known_questions import KnownQuestions
from pipeline.preflight.power import RATIO, policy_power, promotion_power
from pipeline.preflight.speed_power import speed_power
from recipes.catalog import load_policy, load_profile, load_recipe
from recipes.policy import AnySuite, Policy, UsualChange

Values = NDArray[np.float64]
LEAST = {"default": 0.9, "general": 0.9, "code": 0.9, "reasoning": 0.9, "strict": 0.8}
COUNTS = {
    **{"mmlu": 14_042, "code": 542, "rouge": 11_490, "ifeval": 541, "gsm8k": 1319},
    **{"tools": 2116, "needles": 600, "mmlu_pro": 3000, "bleu": 2000},
}
VARIANTS = 2
TOLERANCE = 0.07


def differences(
    suite: AnySuite, usual: UsualChange, n: int, generator: np.random.Generator
) -> Values:
    """Return the usual variant's scores less the baseline's; shape [n]."""
    if suite.kind == "rouge":
        changed = generator.random(n) < usual.flips
        change = np.where(changed, generator.normal(0, 0.1, n), 0.0) - usual.loss
        return np.round(change * 1000) / 1000  # a bound takes as long as there are values
    if suite.kind == "gsm8k" and suite.samples == 4:  # half an answer of some problems
        lost = usual.flips / 2 + usual.loss
        chances = [lost, 1 - usual.flips, usual.flips - lost]
        return generator.choice([-0.5, 0.0, 0.5], size=n, p=chances)
    if suite.kind == "mbpp":
        solved = generator.beta(0.6, 0.4, n)
        after = (solved - 2 * usual.loss * generator.random(n)).clip(0, 1)
        return (generator.binomial(16, after) - generator.binomial(16, solved)) / 16
    lost = (usual.flips + usual.loss) / 2
    chances = [lost, 1 - usual.flips, usual.flips - lost]
    return generator.choice([-1.0, 0.0, 1.0], size=n, p=chances)


def pass_rate(suite: AnySuite, family: str, n: int, level: float, runs: int) -> float:
    """Return the share of usual variants that pass the suite."""
    usual = next(change for name, change in suite.usual.items() if name == family)
    margin = next(margin for name, margin in suite.margins.items() if name == family)
    generator, passed = np.random.default_rng(20261126), 0
    replay = Replay(comparison_of(margin), level)
    for _ in range(runs):
        change = differences(suite, usual, n, generator).clip(-1, 1)
        before, after = np.maximum(-change, 0), np.maximum(change, 0)
        passed += replay.passes(before, after)
    return passed / runs


def ratio_rates(policy: Policy, level: float, runs: int) -> list[float]:
    """Return how often the policy's throughput ratio passes, at each of RATIO."""
    assert policy.speed is not None
    assert policy.speed.ratio is not None
    blocks = policy.speed.ratio.blocks
    return [passes(normal(TYPICAL), truth, 10 * runs, 13, blocks, level) for truth in RATIO]


def replay(name: str, runs: int) -> dict[str, object]:
    """Replay one policy for FP8 and 4-bit variants."""
    policy = load_policy(name)
    recipes = [load_recipe("fp8-dynamic"), load_recipe("awq-w4a16")]
    counts = {suite: min(COUNTS[suite], s.questions or 10**9) for suite, s in policy.suites.items()}
    level = gate_level(policy.alpha, policy.attempts, VARIANTS)
    known = {suite: KnownQuestions.so_many(count) for suite, count in counts.items()}
    told = policy_power(policy, recipes, known, level)
    speed = speed_power(policy, load_profile("h100"), level)
    rates: dict[str, dict[str, float]] = {}
    for gate in told:
        suite = policy.suites[gate.gate]
        if suite.tier == "critical":
            rate = pass_rate(suite, gate.family, counts[gate.gate], level, runs)
            rates.setdefault(gate.family, {})[gate.gate] = rate
    gaps = {
        f"{gate.gate}, {gate.family}": round((gate.usual or 0) - rates[gate.family][gate.gate], 3)
        for gate in told
        if gate.tier == "critical"
    }
    joint = {family: round(math.prod(found.values()), 3) for family, found in rates.items()}
    ratios = ratio_rates(policy, level, runs)
    promotions = {
        family: [round(rate * ratio, 3) for ratio in ratios] for family, rate in joint.items()
    }
    for family, chances in promotion_power([*told, *speed]).items():
        for truth, chance, found in zip(RATIO, chances, promotions[family], strict=True):
            gaps[f"promotion of {family} at {truth:g}"] = round((chance or 0) - found, 3)
    return {
        "suites": rates,
        "all": joint,
        "promotions": promotions,
        "formula_less_replay": gaps,
    }


def main() -> int:
    """Replay, print one line, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=400)
    runs = parser.parse_args().runs
    found = {name: replay(name, runs) for name in LEAST}
    faults = []
    for name, least in LEAST.items():
        noise = 2 * math.sqrt(least * (1 - least) / runs)
        faults += [
            f"{name}, {family}: {rate}"
            for family, rate in found[name]["all"].items()  # type: ignore[attr-defined]
            if rate < least - noise
        ]
        faults += [
            f"{name}, {gate}: the formula differs by {gap}"
            for gate, gap in found[name]["formula_less_replay"].items()  # type: ignore[attr-defined]
            if abs(gap) > TOLERANCE
        ]
    line = {"benchmark": "policy_power", "variants": VARIANTS, "runs": runs}
    print(json.dumps({**line, "policies": found, "faults": faults, "passed": not faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

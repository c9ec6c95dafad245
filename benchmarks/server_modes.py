"""How often the default policy's throughput gate is wrong and right, by how both sides are served.

    .venv/bin/python benchmarks/server_modes.py > benchmarks/results/server_modes.json

Replays of imagined servers, judged by the gate's own rule for two variants. Starts of a server
differ by 2 %, which the profile assumes, a load by 2 %, and one GPU is slower than the other.
A false pass is a pass of a candidate that is as fast as the baseline; at most 2.5 % are allowed
for each of two variants. `apart` is what `swapped` would be without the swap. Nothing is served.
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import numpy as np
from numpy.typing import NDArray

from eval_gates.speed.sequential_rule import WARM_UP
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from eval_gates.statistics.multiplicity import gate_level
from pipeline.plan.server_mode import Mode, in_mode
from pipeline.plan.speed_plan import find_claims
from pipeline.plan.speed_power import claim_powers
from recipes.catalog import load_policy, load_profile

VARIANTS, STARTS, NOISE = 2, 0.02, 0.02
GPU_EFFECTS = (0.0, 0.03, 0.1)
RATIOS = (1.02, 1.05, 1.1, 1.15)
MODES: dict[str, Mode] = {
    "interleaved": "interleaved",
    "concurrent": "concurrent",
    "apart": "concurrent",
    "swapped": "swapped",
}

Floats = NDArray[np.float64]


def margins_of(
    name: str, rule: ThroughputRatioRule, chance: np.random.Generator, shape: tuple[int, float]
) -> Floats:
    """Return ln(candidate / baseline) of each unit of equal servers: [runs, warm-up + units].

    Args:
        shape: replays, and ln of how much faster the first GPU is.
    """
    runs, gpu = shape
    units = rule.cap + (0 if name == "interleaved" else WARM_UP)
    coin = chance.choice([-1.0, 1.0], (runs, 1))
    if name == "interleaved":  # all on one GPU; each unit has separate starts
        noise = NOISE * math.sqrt(2 / rule.loads_per_server_run)
        return chance.normal(0, math.hypot(noise, STARTS * math.sqrt(2)), (runs, units))
    blocks = chance.normal(0, NOISE * math.sqrt(2), (2, runs, units))
    starts = chance.normal(0, STARTS * math.sqrt(2), (2, runs, 1))
    before = blocks[0] + starts[0] + (0.0 if name == "concurrent" else coin * gpu)
    if name != "swapped":
        return np.asarray(before)
    return np.asarray((before + blocks[1] + starts[1] - coin * gpu) / 2)


def passes(rule: ThroughputRatioRule, margins: Floats) -> float:
    """Return the share of replays that pass."""
    return float(np.mean([rule.evaluate_margins(row).state == "pass" for row in margins]))


def main() -> int:
    """Print the figures as JSON; 1 if a mode that is offered is wrong too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=20261126)
    arguments = parser.parse_args()
    chance, runs = np.random.default_rng(arguments.seed), arguments.replays
    policy = load_policy("default")
    level = gate_level(policy.alpha, policy.attempts, 1, VARIANTS)
    most = level + 2 * math.sqrt(level * (1 - level) / runs)
    rows, met = {}, True
    for name, mode in MODES.items():
        profile = in_mode(load_profile("h100"), mode)
        (claim,) = find_claims(policy, profile, alpha=level)
        (planned,) = claim_powers(policy, VARIANTS, profile)
        rule = claim.rule
        assert isinstance(rule, ThroughputRatioRule)
        wrong = {
            f"{100 * gpu:g} %": passes(
                rule, margins_of(name, rule, chance, (runs, math.log1p(gpu)))
            )
            for gpu in GPU_EFFECTS
        }
        usual = (runs, math.log1p(0.03))
        right = {
            str(ratio): passes(rule, margins_of(name, rule, chance, usual) + math.log(ratio))
            for ratio in RATIOS
        }
        rows[name] = {
            "false passes, by how much faster one GPU is": wrong,
            "passes where one GPU is 3 % faster, by true ratio": right,
            "GPU-minutes a variant": planned.gpu_minutes if name != "apart" else None,
            "minutes": planned.minutes if name != "apart" else None,
            "starts": planned.starts,
        }
        met = met and (name == "apart" or max(wrong.values()) <= most)
    summary = {"replays": runs, "seed": arguments.seed, "level": level, "most": most}
    print(json.dumps({**summary, "targets_met": met, "modes": rows}, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

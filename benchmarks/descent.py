"""False promotions and questions of `--until pass`, by the product's own planner and loop.

    .venv/bin/python benchmarks/descent.py [--replays 100]

Models are pretended, everything else is the product: plan, order, looks, bound, verdicts. Three
rungs with one suite of 400 questions and a margin of 10 points. Each replay draws new answers.
`descent` is `--until pass`; `all` gates every rung at alpha / 3, without an order. Worlds:

    bad      every rung loses exactly the margin: each promotion is false
    ladder   the largest loses 1 point, the next 3, the smallest the margin
    largest  only the largest is good; the others lose 20 points
    small    none loses more than 1 point

Prints one JSON line. Exits with 1 if a rung at the margin is promoted more often than alpha and two
standard errors, or if `descent` asks more questions than `all`. It takes minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests")]

from fake_run import FakeRun, policy  # noqa: E402
from pretend_stages import PretendModels  # noqa: E402

ALPHA = 0.05
QUESTIONS = 400
MARGIN = 0.1
RUNGS = ("large", "middle", "small")
SIZES = {"large": 300, "middle": 200, "small": 100}
WORLDS = {
    "bad": (MARGIN, MARGIN, MARGIN),
    "ladder": (0.01, 0.03, MARGIN),
    "largest": (0.01, 0.2, 0.2),
    "small": (0.0, 0.005, 0.01),
}


class Replay:
    """Answers of one replay: the baseline is right in 60 %, a rung loses and gains some of it."""

    def __init__(self, losses: tuple[float, ...], seed: int) -> None:
        chance = np.random.default_rng(seed)
        right = chance.random(QUESTIONS) < 0.6
        self._scores = {"baseline": right}
        gain = 0.02
        for rung, loss in zip(RUNGS, losses, strict=True):
            drawn = chance.random(QUESTIONS)
            lost = right & (drawn < (loss + gain) / 0.6)
            gained = ~right & (drawn < gain / 0.4)
            self._scores[rung] = (right & ~lost) | gained

    def score(self, variant: str, suite: str, number: int) -> float:
        return float(self._scores[variant][number])


def promoted_by(losses: tuple[float, ...], seed: int, *, descends: bool) -> tuple[str, int]:
    """Return the rung that one run would promote, or '', and the questions that rungs answered."""
    with tempfile.TemporaryDirectory() as folder:
        models = PretendModels(Replay(losses, seed).score, questions=QUESTIONS)
        made = FakeRun(
            Path(folder) / "store",
            models,
            policy(margins={"fp8": MARGIN}),
            RUNGS,
            until_pass=descends,
            sizes=SIZES,
        )
        report = made.run()
    passed = [variant.recipe for variant in report.variants if variant.verdict == "pass"]
    smallest = min(passed, key=lambda rung: SIZES[rung], default="")
    asked = sum(number for variant, _, number in models.asked if variant != "baseline")
    return smallest, asked


def replay(world: str, replays: int, *, descends: bool) -> dict[str, Any]:
    """Return the share of runs that promote each rung, and the mean of questions."""
    promoted = Counter[str]()
    questions = 0
    for seed in range(replays):
        rung, asked = promoted_by(WORLDS[world], seed, descends=descends)
        promoted[rung] += 1
        questions += asked
    shares = {rung: promoted[rung] / replays for rung in RUNGS if promoted[rung]}
    return {"promoted": shares, "questions": round(questions / replays)}


def main() -> int:
    """Replay all worlds; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=100)
    replays = parser.parse_args().replays
    results = {
        world: {
            name: replay(world, replays, descends=name == "descent") for name in ("descent", "all")
        }
        for world in WORLDS
    }
    allowed = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / replays)
    false_passes = {
        "bad": sum(results["bad"]["descent"]["promoted"].values()),
        "ladder": results["ladder"]["descent"]["promoted"].get("small", 0.0),
    }
    holds = all(share <= allowed for share in false_passes.values())
    fewer = all(
        figures["descent"]["questions"] <= figures["all"]["questions"]
        for figures in results.values()
    )
    print(
        json.dumps(
            {
                "replays": replays,
                "false_promotions": false_passes,
                "allowed": round(allowed, 4),
                "ratio_of_questions": {
                    world: round(figures["descent"]["questions"] / figures["all"]["questions"], 2)
                    for world, figures in results.items()
                },
                "worlds": results,
            }
        )
    )
    return 0 if holds and fewer else 1


if __name__ == "__main__":
    sys.exit(main())

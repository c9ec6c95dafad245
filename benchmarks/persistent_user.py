"""False promotions of a persistent user, by replays of the product's own ledger and rules.

    .venv/bin/python benchmarks/persistent_user.py [--users 400]

All variants are bad by exactly the margin (1 point, 4 % flips, 14,042 questions). A user sees some
of them first, by `--screen` or a gated run under `default`, on the same questions. Then the user
gates the best ones under `strict`, one a run, until one passes or the ledger refuses. `forgetful`
counts only attempts under `strict`, as before 2026-11-28. `suspicious` has candidates that gain 40
points, and baselines of which a tenth of the answers was cut off: none may pass.

Prints one JSON line. Exits with 1 if `strict` passes more often than its alpha of 2 % and two
standard errors, or anything suspicious passes. Takes about 80 seconds on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
from gate_power import Replay
from numpy.typing import NDArray

from eval_gates.quality_gate import Scores, judge_scores
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import findings, first_decided
from pipeline.stages.attempts import AttemptLedger, Counted, Trial, trial_of
from prepare.errors import UsageError
from prepare.store import Store
from recipes.catalog import load_policy
from recipes.policy import Policy

MARGIN = 0.01
FLIPS = 0.04
QUESTIONS = 14_042
SEEN: dict[str, tuple[int, Literal["screen", "gate"]]] = {
    "none": (0, "screen"),
    "3 screened": (3, "screen"),
    "8 screened": (8, "screen"),
    "20 under default": (20, "gate"),
}
TRIED_MOST = 5


def draw_changes(generator: np.random.Generator) -> NDArray[np.float64]:
    """Return a bad variant's scores less the baseline's; shape [questions]."""
    lost = (FLIPS + MARGIN) / 2
    chances = [lost, 1 - FLIPS, FLIPS - lost]
    return generator.choice([-1.0, 0.0, 1.0], size=QUESTIONS, p=chances)


def trial_of_variant(number: int, policy: Policy) -> Trial:
    """Return the trial of one variant alone."""
    return trial_of({"model": "m"}, {f"variant-{number}": f"weights-{number}"}, policy, "asked")


def is_promoted(
    generator: np.random.Generator,
    seen: int,
    kind: Literal["screen", "gate"],
    replay: Replay,
    *,
    forgetful: bool,
) -> bool:
    """Return whether one user gets a bad variant through `strict`."""
    strict = load_policy("strict")
    screening = load_policy("default")
    candidates = [draw_changes(generator) for _ in range(max(seen, TRIED_MOST))]
    order = sorted(range(len(candidates)), key=lambda n: -candidates[n].mean()) if seen else None
    with tempfile.TemporaryDirectory() as folder:
        ledger = AttemptLedger(Store(Path(folder) / "store"))
        for number in range(0 if forgetful else seen):
            ledger.begin(Counted(trial=trial_of_variant(number, screening), gate=""), kind=kind)
        for number in (order or range(len(candidates)))[:TRIED_MOST]:
            trial = trial_of_variant(number, strict)
            try:
                ledger.begin(Counted(trial=trial, gate=""))
            except UsageError:
                return False
            replay.alpha = trial.level
            changes = candidates[number]
            if replay.passes(np.maximum(-changes, 0), np.maximum(changes, 0)):
                return True
    return False


def suspicious_passes(replays: int) -> dict[str, float]:
    """Return shares of passes of a gain of 40 points, and of a baseline that was cut off."""
    generator = np.random.default_rng(20261128)
    passed = {"gain of 40 points": 0, "a tenth cut off": 0}
    for _ in range(replays):
        before = generator.random(1_000) < 0.3
        better = before | (generator.random(1_000) < 4 / 7)
        same = before ^ (generator.random(1_000) < 0.005)
        for name, after, cut_off in (
            ("gain of 40 points", better, 0.0),
            ("a tenth cut off", same, 0.1),
        ):
            scores = Scores(
                baseline=float(before.mean()),
                candidate=float(after.mean()),
                flips=float((before != after).mean()),
                full_baseline=float(before.mean()),
                cut_off=cut_off,
            )
            finding = first_decided(
                findings(
                    before.astype(float).tolist(),
                    after.astype(float).tolist(),
                    Comparison.points(0.05),
                    0.025,
                    1_000,
                )
            )
            passed[name] += judge_scores(finding, scores).verdict == "pass"
    return {name: count / replays for name, count in passed.items()}


def main() -> int:
    """Replay, print one line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=400)
    users = parser.parse_args().users
    alpha = load_policy("strict").alpha
    replay = Replay(Comparison.points(MARGIN), alpha)
    rates: dict[str, dict[str, float]] = {}
    for name, (seen, kind) in SEEN.items():
        generator = np.random.default_rng(20261128 + seen)
        for rule in ("counted", "forgetful"):
            passed = sum(
                is_promoted(generator, seen, kind, replay, forgetful=rule == "forgetful")
                for _ in range(users)
            )
            rates.setdefault(name, {})[rule] = passed / users
    suspicious = suspicious_passes(users)
    noise = 2 * math.sqrt(alpha * (1 - alpha) / users)
    faults = [name for name, rate in rates.items() if rate["counted"] > alpha + noise]
    faults += [name for name, rate in suspicious.items() if rate > 0]
    line = {"benchmark": "persistent_user", "users": users, "promised": alpha}
    found = {"strict": rates, "suspicious": suspicious, "faults": faults, "passed": not faults}
    print(json.dumps({**line, **found}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

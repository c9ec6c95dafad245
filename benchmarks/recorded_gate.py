"""What a check against answers on record promises: replays through the gate's own looks.

    .venv/bin/python benchmarks/recorded_gate.py [REPLAYS]

The record is a variant that passed its gate against a source, and so was asked as far as the look
that decided. A later engine loses `loss` on these questions once and for all; each check flips
`noise` of the answers besides, as two starts of one engine do.

Prints one JSON line. Exits with 1 if a loss of the margin passes more often than alpha and two
standard errors.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Finding, find, planned_looks

Scores = NDArray[np.float64]
ALPHA = 0.05
YEAR_DAYS = 365


@dataclass(frozen=True)
class World:
    """A suite and its models.

    `score` is the source's mean. `flips` is the share of answers that quantizing changes, as often
    for the better as for the worse.
    """

    questions: int = 2_000
    margin: float = 0.02
    score: float = 0.7
    flips: float = 0.04
    noise: float = 0.01


def draw_record(world: World, draw: np.random.Generator) -> Scores:
    """Return the answers of a variant that passed, up to the look that decided."""
    comparison = Comparison.points(world.margin)
    while True:
        source = (draw.random(world.questions) < world.score).astype(float)
        variant = flipped(source, world.flips, draw)
        found = find(source, variant, comparison, ALPHA, world.questions)
        if found.state == "pass":
            looks = planned_looks(world.questions, world.margin)
            return variant[: looks[found.number - 1].n]


def flipped(scores: Scores, share: float, draw: np.random.Generator) -> Scores:
    """Return scores of which this share changed, half of it each way."""
    right = scores == 1
    moved = draw.random(scores.size)
    chances = np.where(right, share / 2 / max(right.mean(), 1e-9), share / 2 / (1 - right.mean()))
    return np.where(moved < chances, 1 - scores, scores)


def damaged(scores: Scores, loss: float, draw: np.random.Generator) -> Scores:
    """Return scores whose mean is lower by `loss` on average: right answers become wrong."""
    lost = draw.random(scores.size) < loss / scores.mean()
    return np.where(lost, 0.0, scores)


def check(record: Scores, now: Scores, margin: float) -> Finding:
    """Compare as the gate does."""
    return find(record, now, Comparison.points(margin), ALPHA, record.size)


def shares_of(world: World, loss: float, replays: int, seed: int = 0) -> dict[str, float]:
    """Return how often one check ends in each state, over new records and losses."""
    draw = np.random.default_rng(seed)
    ends = Counter[str]()
    for _ in range(replays):
        record = draw_record(world, draw)
        now = flipped(damaged(record, loss, draw), world.noise, draw)
        ends[check(record, now, world.margin).state] += 1
    return {state: ends[state] / replays for state in ("pass", "open", "fail")}


def days_until(world: World, loss: float, every_days: int, seed: int) -> tuple[int, int]:
    """Return the days until a check does not pass, and until one fails; -1 if none does."""
    draw = np.random.default_rng(seed)
    record = draw_record(world, draw)
    engine = damaged(record, loss, draw)
    began = int(draw.integers(every_days))  # days after a check at which the engine changes
    noticed = -1
    for day in range(every_days, YEAR_DAYS + 1, every_days):
        state = check(record, flipped(engine, world.noise, draw), world.margin).state
        if state != "pass" and noticed < 0:
            noticed = day - began
        if state == "fail":
            return noticed, day - began
        if noticed >= 0 and day > 4 * every_days:  # a damage stays: later checks end alike
            break
    return noticed, -1


def year(world: World, years: int, intervals: Sequence[int] = (1, 7, 30)) -> list[dict[str, float]]:
    """Return a row for each interval and loss, in margins."""
    rows = []
    for interval in intervals:
        for margins in (0.0, 1.0, 2.0):
            loss = margins * world.margin
            ends = [days_until(world, loss, interval, seed) for seed in range(years)]
            noticed = sorted(one for one, _ in ends if one >= 0)
            failed = sum(two >= 0 for _, two in ends)
            rows.append(
                {
                    "every_days": interval,
                    "loss_in_margins": margins,
                    "years_not_passed": len(noticed) / years,
                    "years_failed": failed / years,
                    "median_days": noticed[len(noticed) // 2] if noticed else -1,
                }
            )
    return rows


def main() -> int:
    """Replay single checks and years; return the exit code."""
    world = World()
    replays = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    checks = {
        margins: shares_of(world, margins * world.margin, replays)
        for margins in (0.0, 0.5, 1.0, 2.0)
    }
    allowed = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / replays)
    print(
        json.dumps(
            {
                "world": asdict(world),
                "replays": replays,
                "by_loss_in_margins": checks,
                "passes_at_the_margin": checks[1.0]["pass"],
                "allowed": round(allowed, 4),
                "years": year(world, max(20, replays // 10)),
            }
        )
    )
    return 0 if checks[1.0]["pass"] <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a check against answers on record promises: replays through the gate's own looks.

    .venv/bin/python benchmarks/recorded_gate.py [REPLAYS] [YEARS]

The record is a variant that passed its gate against a source, and so was asked as far as the look
that decided. A later engine loses `loss` on these questions once and for all; each check flips
`noise` of the answers besides, as two starts of one engine do. `gate` compares by the policy's
margin; `recheck` by half of it, or by the whole where the record has too few answers.

Prints one JSON line. Exits with 1 if a loss of the compared margin passes more often than alpha and
two standard errors.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eval_gates.statistics.bound import mean_bounds
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import findings, first_decided, planned_looks
from pipeline.preflight.chances import chances
from pipeline.preflight.power import ENGINE_FLIPS, LIKELY

Scores = NDArray[np.float64]
ALPHA = 0.05
YEAR_DAYS = 365
MARGINS = (0.0, 0.5, 1.0, 2.0)


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

    def of_gate(self, answers: int) -> float:
        """Return the margin of `prepare gate`."""
        return self.margin

    def of_recheck(self, answers: int) -> float:
        """Return the margin of `prepare recheck`, by the number of recorded answers."""
        return halved(self.margin, answers)


def draw_record(world: World, draw: np.random.Generator) -> Scores:
    """Return the answers of a variant that passed, up to the look that decided."""
    comparison = Comparison.points(world.margin)
    while True:
        source = (draw.random(world.questions) < world.score).astype(float)
        variant = flipped(source, world.flips, draw)
        passed = first_decided(findings(source, variant, comparison, ALPHA, world.questions))
        if passed.state == "pass":
            looks = planned_looks(world.questions, world.margin)
            return variant[: looks[passed.number - 1].n]


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


@lru_cache(maxsize=10_000)
def halved(margin: float, answers: int) -> float:
    """Return half of the margin, or the whole where an unchanged engine would often not pass."""
    half = Comparison.points(margin / 2)
    passes = chances(half, ALPHA, answers, flips=ENGINE_FLIPS, loss=0.0).passes
    return margin / 2 if passes >= LIKELY else margin


@lru_cache(maxsize=1_000_000)
def look(margin: float, level: float, n: int, lost: int, gained: int) -> str:
    """Return what a look at these counts decides; they alone matter to its bounds."""
    values = np.repeat([-1.0, 0.0, 1.0], [lost, n - lost - gained, gained])
    bounds = mean_bounds(values, level, lowest=-1.0, highest=1.0)
    if bounds.upper < -margin:
        return "fail"
    return "pass" if bounds.lower > -margin else "open"


def check(record: Scores, now: Scores, margin: float) -> str:
    """Compare as the gate does, look by look."""
    changes = now - record
    for planned in planned_looks(record.size, margin):
        shown = changes[: planned.n]
        lost = int((shown < 0).sum())
        gained = int((shown > 0).sum())
        state = look(margin, ALPHA * planned.share, planned.n, lost, gained)
        if state != "open":
            return state
    return "open"


def shares_of(
    world: World, margin_of: Callable[[int], float], margins: float, replays: int, seed: int = 0
) -> dict[str, float]:
    """Return how often a check ends in each state, over new records and losses.

    The true loss is so many compared `margins`.
    """
    draw = np.random.default_rng(seed)
    ends = Counter[str]()
    for _ in range(replays):
        record = draw_record(world, draw)
        margin = margin_of(record.size)
        now = flipped(damaged(record, margins * margin, draw), world.noise, draw)
        ends[check(record, now, margin)] += 1
    return {state: ends[state] / replays for state in ("pass", "open", "fail")}


def days_until(world: World, loss: float, every_days: int, seed: int) -> tuple[int, int]:
    """Return the days until a check does not pass, and until one fails; -1 if none does."""
    draw = np.random.default_rng(seed)
    record = draw_record(world, draw)
    engine = damaged(record, loss, draw)
    began = int(draw.integers(every_days))  # days after a check at which the engine changes
    noticed = -1
    for day in range(every_days, YEAR_DAYS + 1, every_days):
        state = check(record, flipped(engine, world.noise, draw), world.margin)
        if state != "pass" and noticed < 0:
            noticed = day - began
        if state == "fail":
            return noticed, day - began
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
    years = int(sys.argv[2]) if len(sys.argv) > 2 else max(20, replays // 10)
    checks = {
        name: {margins: shares_of(world, margin_of, margins, replays) for margins in MARGINS}
        for name, margin_of in (("gate", world.of_gate), ("recheck", world.of_recheck))
    }
    allowed = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / replays)
    most = max(by_loss[1.0]["pass"] for by_loss in checks.values())
    print(
        json.dumps(
            {
                "world": asdict(world),
                "replays": replays,
                "by_loss_in_compared_margins": checks,
                "passes_at_the_margin": most,
                "allowed": round(allowed, 4),
                "years_replayed": years,
                "years": year(world, years),
            }
        )
    )
    return 0 if most <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())

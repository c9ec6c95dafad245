"""A race chooses; what it seems to show is worth nothing, and the claim errs as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from measured_loads import load_in_waves

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.screening import ScreeningRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule, restart_allowance

LIFE, ROUND = 0.02, 0.02  # spread of ln(output tokens/s): between lives, between loads of one
ALPHA = 0.045  # a first trial's share of 0.05


def rounds(*seconds: float) -> list[LoadRun]:
    return [
        load_in_waves(seconds=each, block=n, seed=n, prompts_sha256=f"{n:064x}")
        for n, each in enumerate(seconds)
    ]


class TestMeasuringEnds:
    def test_after_all_rounds(self) -> None:
        rule = ScreeningRule(repetitions=2)
        assert [rule.needs_more(rounds(*[1.0] * n)) for n in range(3)] == [True, True, False]
        assert rule.state(rounds(1.0, 1.0)) == "measured"

    def test_with_one_that_falls_behind(self) -> None:
        leader = ScreeningRule(repetitions=1).typical_rate(rounds(1.0))
        rule = ScreeningRule(repetitions=3, leader=leader, prune_margin=0.1)
        assert rule.state(rounds(1.2)) == "pruned"
        assert rule.state(rounds(1.05)) == "open"
        # One round near the leader is enough to go on.
        assert rule.state(rounds(1.05, 1.2)) == "open"

    def test_with_one_whose_numbers_are_none(self) -> None:
        rule = ScreeningRule(repetitions=3, hit_rate=0.9)
        assert rule.state(rounds(1.0)) == "invalid"
        assert rule.invalid_reasons(rounds(1.0))[0].kind == "no_counter"

    def test_the_same_prompts_twice_are_refused(self) -> None:
        loads = [load_in_waves(block=0, seed=1), load_in_waves(block=1, seed=1)]
        assert ScreeningRule(repetitions=3).state(loads) == "invalid"


def search(chance: np.random.Generator, truths: np.ndarray) -> tuple[float, str]:
    """Screen candidates of these ln(speed), and confirm the best as `prepare tune` does.

    Returns:
        what the race makes of its winner over stock; and the claim's verdict, or 'stock'.
    """
    screened = np.append(0.0, truths)  # stock first
    server_runs = chance.normal(screened, LIFE)
    seen = (server_runs[:, None] + chance.normal(0, ROUND, (screened.size, 3))).mean(axis=1)
    best = int(seen.argmax())
    seems = math.exp(seen[best] - seen[0])
    if best == 0:
        return seems, "stock"
    rule = ThroughputRatioRule(
        min_ratio=1.0,
        alpha=ALPHA,
        blocks=20,
        restart_allowance=restart_allowance(LIFE, 1_000, ALPHA / 2),
        restart_allowance_alpha=ALPHA / 2,
    )
    pair = chance.normal(screened[best], LIFE) - chance.normal(0.0, LIFE)
    logs = pair + chance.normal(0, math.sqrt(2) * ROUND, 22)  # two of warm-up
    return seems, rule.evaluate_margins(logs).state


@pytest.mark.parametrize("screened", [8, 24])
def test_equal_candidates_seem_faster_and_no_gain_is_claimed(screened: int) -> None:
    """The winner's curse, and that it ends with the race."""
    chance = np.random.default_rng(7)
    found = [search(chance, np.zeros(screened)) for _ in range(250)]
    seems = float(np.mean([each for each, _ in found]))
    claimed = sum(state == "pass" for _, state in found) / len(found)
    assert seems > 1.03  # the estimate without a separate confirmation
    assert claimed <= ALPHA


def test_a_real_gain_is_found_among_equals() -> None:
    chance = np.random.default_rng(8)
    truths = np.append(np.zeros(7), math.log(1.15))
    found = [search(chance, truths)[1] for _ in range(100)]
    assert sum(state == "pass" for state in found) >= 0.9 * len(found)

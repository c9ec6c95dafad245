"""A race chooses; what it seems to show is worth nothing, and the claim errs as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from measured_loads import load_in_waves

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.screening import ScreeningRule
from eval_gates.statistics.paired_t import compare_mean

START, LOAD = 0.02, 0.02  # spread of ln(output tokens/s): between starts, between loads of one
ALPHA = 0.05


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

    def test_with_one_whose_numbers_are_none(self) -> None:
        rule = ScreeningRule(repetitions=3, hit_rate=0.9)
        assert rule.state(rounds(1.0)) == "invalid"
        assert rule.invalid_reasons(rounds(1.0))[0].kind == "no_counter"

    def test_the_same_prompts_twice_are_refused(self) -> None:
        loads = [load_in_waves(block=0, seed=1), load_in_waves(block=1, seed=1)]
        assert ScreeningRule(repetitions=3).state(loads) == "invalid"


def search(chance: np.random.Generator, truths: np.ndarray) -> tuple[float, bool]:
    """Screen candidates of these ln(speed), and confirm the best as `prepare tune` does.

    Returns:
        what the race makes of its winner over the defaults; and whether its gain is claimed.
    """
    screened = np.append(0.0, truths)  # the defaults first
    server_runs = chance.normal(screened, START)
    seen = (server_runs[:, None] + chance.normal(0, LOAD, (screened.size, 3))).mean(axis=1)
    best = int(seen.argmax())
    noise = math.sqrt(2) * math.hypot(START, LOAD)
    logs = chance.normal(screened[best], noise, 5)
    claimed = best > 0 and compare_mean(logs.tolist(), 0.0, ALPHA).lower > 0
    return math.exp(seen[best] - seen[0]), claimed


@pytest.mark.parametrize("screened", [8, 24])
def test_equal_candidates_seem_faster_and_no_gain_is_claimed(screened: int) -> None:
    """The winner's curse, and that it ends with the race."""
    chance = np.random.default_rng(7)
    found = [search(chance, np.zeros(screened)) for _ in range(250)]
    seems = float(np.mean([each for each, _ in found]))
    claimed = sum(is_claimed for _, is_claimed in found) / len(found)
    assert seems > 1.03  # the estimate without a separate confirmation
    assert claimed <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / len(found))


def test_a_real_gain_is_found_among_equals() -> None:
    chance = np.random.default_rng(8)
    truths = np.append(np.zeros(7), math.log(1.15))
    found = [search(chance, truths)[1] for _ in range(100)]
    assert sum(found) >= 0.9 * len(found)

"""What a speed gate can show before anything is measured."""

from __future__ import annotations

import tracemalloc

import pytest

from eval_gates.speed.power import speed_power
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule

RATIO = ThroughputRatioRule(min_ratio=1.2, alpha=0.05, blocks=20)
SLO = SloRule(limits={"ttft_ms_p95": 800}, slo_attainment=0.5, alpha=0.05, rounds=30)


def test_the_fewest_blocks_and_rounds() -> None:
    """After which the clearest case passes; none where the cap is below that."""
    assert speed_power(RATIO).min_units == 10  # twelve with those of the warm-up
    alternate = RATIO.model_copy(update={"server_mode": "interleaved"})
    assert speed_power(alternate).min_units == 5
    assert speed_power(alternate.model_copy(update={"alpha": 0.01})).min_units == 8
    assert speed_power(RATIO.model_copy(update={"blocks": 9})).min_units is None
    assert speed_power(SLO).min_units == 10
    assert speed_power(SLO.model_copy(update={"slo_attainment": 0.8})).min_units == 16
    assert speed_power(SLO.model_copy(update={"slo_attainment": 0.9})).min_units is None


def test_what_is_further_above_passes_more_often_and_sooner() -> None:
    two, five, ten = speed_power(RATIO).chances
    assert [each.truth for each in (two, five, ten)] == pytest.approx([1.224, 1.26, 1.32])
    assert two.passes < 0.7 < 0.95 < five.passes <= ten.passes
    assert ten.units < five.units < two.units <= 20


def test_shares_that_are_not_claimed_are_left_out() -> None:
    assert [each.truth for each in speed_power(SLO).chances] == [0.8, 0.9, 0.99]
    strict = SLO.model_copy(update={"slo_attainment": 0.9, "rounds": 60})
    assert [each.truth for each in speed_power(strict).chances] == [0.99]


def test_an_allowance_for_lives_costs_power() -> None:
    allowed = RATIO.model_copy(update={"restart_allowance": 0.03, "restart_allowance_alpha": 0.025})
    for before, after in zip(speed_power(RATIO).chances, speed_power(allowed).chances, strict=True):
        assert after.passes <= before.passes


def test_a_large_cap_is_foreseen_in_little_memory() -> None:
    """10,000 rounds, the most that a policy may ask for, took 760 MB and 16 seconds."""
    tracemalloc.start()
    try:
        assert speed_power(SLO.model_copy(update={"rounds": 10_000})).min_units == 10
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()

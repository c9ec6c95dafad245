"""The chance to pass that is told is the one that the rule has."""

from __future__ import annotations

import pytest

from eval_gates.speed.rules import LimitRule, RatioRule
from pipeline.plan.speed_power import chances, claim_powers
from recipes.catalog import load_policy, load_profile


def test_more_blocks_and_a_faster_variant_pass_more_often() -> None:
    def passes(blocks: int, starts: str = "fresh") -> list[float]:
        rule = RatioRule(min_ratio=0.95, alpha=0.025, blocks=blocks, starts=starts)
        return [chance.passes for chance in chances(rule)]

    five, eight, once = passes(5), passes(8), passes(5, "once")
    assert five == sorted(five)
    assert all(a < b for few in (five,) for a, b in zip(few, eight, strict=True))
    assert all(a < b for a, b in zip(five, once, strict=True))
    # As benchmarks/speed_power.py replays it.
    assert five == pytest.approx([0.59, 0.98, 1.0], abs=0.03)


def test_at_the_threshold_a_gate_errs_as_often_as_its_level_says() -> None:
    (at, *_) = chances(RatioRule(min_ratio=1.0, alpha=0.025, blocks=5))
    assert (at.passes, at.fails) == (pytest.approx(0.025), pytest.approx(0.025))
    (near, *_, far) = chances(LimitRule(limits={"ttft_ms_p95": 800}, alpha=0.025, blocks=6))
    assert near.passes < far.passes


def test_a_policys_gates_say_what_they_take() -> None:
    (gate,) = claim_powers(load_policy("default"), 2, load_profile("h100"))
    assert (gate.blocks, gate.starts, gate.alpha) == (5, 10, pytest.approx(0.025))
    assert gate.minutes is not None
    assert gate.gpu_minutes == gate.minutes > 10 * 2
    for told in ("ratio.chat", "critical", "passes by true ratio: 58 % at 1, 98 % at 1.05"):
        assert told in gate.words
    _, limits = claim_powers(load_policy("strict"), 2, load_profile("h100"))
    assert (limits.blocks, limits.starts) == (8, 8)
    (unknown,) = claim_powers(load_policy("default"), 2)
    assert (unknown.starts, unknown.gpu_minutes) == (2, None)

"""Ratios from paired blocks: which loads make a block, what is refused, what an allowance costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_loads import block, blocks
from pydantic import ValidationError

from eval_gates.speed.gate_rule import parse_rule
from eval_gates.speed.throughput_ratio import (
    ThroughputRatioRule,
    log_ratios,
    pair_sides,
    restart_allowance,
)

RULE = ThroughputRatioRule(min_ratio=1.0, alpha=0.05, blocks=20, settled=0)


def test_a_faster_candidate_passes_and_a_slower_one_fails() -> None:
    """With bounds of the ratio on the right side of the minimum; the first two are warm-up."""
    faster = RULE.evaluate(blocks([0.5, 0.5, 1.1, 1.12, 1.08, 1.11, 1.1, 1.09]))
    assert (faster.state, faster.n) == ("pass", 6)
    assert faster.estimate == pytest.approx(1.1, abs=0.001)
    assert faster.lower == pytest.approx(1.08, abs=0.004)  # the client was late by 1 ms
    assert faster.upper == pytest.approx(1.12, abs=0.004)
    assert faster.p_value <= 0.05
    slower = RULE.evaluate(blocks([3, 3, 0.9, 0.88, 0.92, 0.91, 0.9, 0.89]))
    assert slower.state == "fail"
    assert slower.upper == pytest.approx(0.92, abs=0.004)


def test_it_stops_where_it_is_decided_or_at_the_cap() -> None:
    clear, close = blocks([1.1] * 7), blocks([1.1, 0.9] * 4)
    assert RULE.needs_more([])
    assert RULE.needs_more(clear[:12])
    assert not RULE.needs_more(clear)
    assert RULE.needs_more(close)
    assert not RULE.model_copy(update={"blocks": 6}).needs_more(close)
    assert RULE.state(close) == "open"


def test_each_life_of_the_servers_is_warmed_up() -> None:
    """Where a measurement was killed, the next life of the servers begins cold."""
    loads = blocks([1.1] * 3 + [0.5, 0.5] + [1.1] * 4)
    lives = [load.model_copy(update={"server_run": int(load.block >= 3)}) for load in loads]
    assert list(RULE.count(lives)) == [False, False, True, False, False, True, True, True, True]
    # Five that count, and one for the life that was lost.
    assert (RULE.evaluate(lives).n, RULE.state(lives)) == (6, "open")
    assert RULE.evaluate(loads).n == 7


def test_lives_that_alternate_are_warmed_up_each_by_itself() -> None:
    """So every pair counts."""
    rule = RULE.model_copy(update={"server_mode": "interleaved", "loads_per_server_run": 2})
    loads = [
        load.model_copy(update={"server_run": load.block // 2 * 2 + load.order})
        for load in blocks([1.1] * 10)
    ]
    found = rule.evaluate(loads)
    assert (found.state, found.n, found.decided_at) == ("pass", 5, 5)


def test_a_start_that_was_better_is_waited_out() -> None:
    """Until what came after it is plainly steady."""
    found = RULE.evaluate(blocks([3, 3, *[1.1, 1.12, 1.08, 1.11] * 5]))
    assert found.state == "pass"
    assert found.decided_at is not None
    assert 5 < found.decided_at <= 9


def test_a_block_at_the_minimum_is_on_neither_side() -> None:
    """Blocks that are all equal to it say nothing, however many; one does not undo the others."""
    assert RULE.evaluate_margins(np.zeros(22)).state == "open"
    assert RULE.evaluate_margins(np.array([0.1] * 7 + [0.0])).state == "pass"
    some = np.array([0.1, 0.1] + [0.1, 0.0] * 10)
    for sign in (1, -1):
        assert RULE.evaluate_margins(sign * some).state == "open"


def test_a_ratio_that_runs_towards_the_minimum_decides_nothing() -> None:
    """It is measured on until it is steady, beyond the cap as well, up to the budget."""
    fading = 1 + 0.1 * 0.8 ** np.arange(9) - 0.004
    loads = blocks(list(fading))
    assert RULE.log_evidence(np.log(fading[2:9]))[0][-1] > -math.log(0.05)
    assert RULE.state(loads[:18]) == "open"
    short = RULE.model_copy(update={"blocks": 7})
    assert short.needs_more(loads[:18])
    still = blocks(list(1 + 0.1 * 0.8 ** np.arange(16) - 0.02))
    found = short.evaluate(still)
    assert (found.state, found.n, found.p_value) == ("disturbed", 14, 1.0)
    assert [(cause.kind, cause.side) for cause in found.invalid_reasons] == [("drift", "candidate")]
    assert not short.needs_more(still)
    assert short.model_copy(update={"began": [0, 1]}).needs_more(still)
    settled = blocks([*fading[:9], *[1.06] * 6])
    assert RULE.state(settled) == "pass"


def test_the_trail_shows_the_evidence_after_each_block() -> None:
    found = RULE.evaluate(blocks([1.1] * 8))
    assert [point.n for point in found.e_process] == [1, 2, 3, 4, 5, 6]
    assert found.decided_at == 5
    assert [point.log10_e_pass >= math.log10(20) for point in found.e_process] == [False] * 4 + [
        True
    ] * 2


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("unlike", {"prompts_sha256": "f" * 64}),
        ("own_cache", {"seed": 1}),
    ],
)
def test_what_no_disturbance_does_ends_the_measurement(kind: str, changes: dict[str, Any]) -> None:
    """One such load, and nothing more is measured."""
    rule = RULE
    loads = blocks([1.1] * 5) + block(5, 1.1, **changes)
    found = rule.evaluate(loads)
    assert found.state == "invalid"
    assert not rule.needs_more(loads)
    assert kind in {cause.kind for cause in found.invalid_reasons}
    assert {cause.side for cause in found.invalid_reasons} == {"candidate"}


def test_a_block_has_both_sides_once() -> None:
    whole = block(0, 1.0)
    assert pair_sides([*reversed(whole)]) == [(whole[0], whole[1])]
    for wrong in (whole[:1], [whole[0], *whole]):
        with pytest.raises(ValueError, match="block 0"):
            pair_sides(wrong)


def test_lives_that_alternate_are_one_value_a_pair() -> None:
    """Blocks of one pair of lives are not independent of each other."""
    pairs = pair_sides(blocks([1.1, 1.3, 0.9, 1.0]))
    together, alternate = log_ratios(pairs), log_ratios(pairs, 2)
    assert np.exp(together) == pytest.approx([1.1, 1.3, 0.9, 1.0])
    assert alternate == pytest.approx([np.mean(together[:2]), np.mean(together[2:])])


def test_an_allowance_asks_for_more_and_costs_error_rate() -> None:
    """Both directions: two server runs are too few for a pass and for a fail."""
    allowed = RULE.model_copy(update={"restart_allowance": 0.05, "restart_allowance_alpha": 0.025})
    close = np.log([1.03, 1.031, 1.029] * 5)
    assert RULE.evaluate_margins(close).state == "pass"
    assert allowed.evaluate_margins(close).state == "open"
    assert allowed.evaluate_margins(-close).state == "open"
    clear = allowed.evaluate_margins(close + 0.1)
    assert clear.state == "pass"
    assert 0.025 < clear.p_value <= 0.05
    with pytest.raises(ValidationError):
        ThroughputRatioRule(
            min_ratio=1.0,
            alpha=0.05,
            blocks=20,
            restart_allowance=0.1,
            restart_allowance_alpha=0.05,
        )


def test_the_allowance_of_few_lives_is_larger() -> None:
    """For many runs it is about 2 sqrt(2) times their spread."""
    assert restart_allowance(0.01, 10_000, 0.025) == pytest.approx(0.0277, abs=1e-4)
    assert restart_allowance(0.01, 3, 0.025) == pytest.approx(0.0608, abs=1e-4)
    with pytest.raises(ValueError, match="1 server runs"):
        restart_allowance(0.01, 1, 0.025)


def test_two_lives_of_one_server_seldom_pass_for_two_servers() -> None:
    """A/A with both up: lives differ by 1.5 % each, the spread is known from five of them."""
    chance = np.random.default_rng(8)
    runs, spread = 4_000, 0.015
    known = chance.normal(0, spread, (runs, 5)).std(axis=1, ddof=1)
    pair = chance.normal(0, spread * math.sqrt(2), (runs, 1))
    logs = pair + chance.normal(0, 0.01 * math.sqrt(2), (runs, 20))
    allowances = np.array([restart_allowance(each, 5, 0.025) for each in known])[:, None]
    for sign in (1, -1):
        passing, _ = RULE.log_evidence(sign * logs - allowances)
        assert (passing.max(axis=1) >= -math.log(0.025)).mean() <= 0.05
        without, _ = RULE.log_evidence(sign * logs)
        assert (without.max(axis=1) >= -math.log(0.05)).mean() > 0.15  # what the allowance is for


@pytest.mark.parametrize(
    ("differ", "most"), [(0.0, 0.05), (0.01, 0.05), (0.02, 0.05), (0.03, 0.05)]
)
def test_one_start_of_each_server_seldom_passes_equal_servers(differ: float, most: float) -> None:
    """With the blocks of the default policy, and starts that are assumed to differ by 2 %.

    Both servers are on the same GPUs, so a GPU's own speed is in both and cancels out. Where starts
    differ by more than is assumed, more passes.
    """
    chance = np.random.default_rng(28)
    rule = RULE.model_copy(
        update={
            **{"blocks": 11, "settled": 12, "restart_allowance_alpha": 0.025},
            "restart_allowance": restart_allowance(0.02, 1_000, 0.025),
        }
    )
    starts = chance.normal(0, differ, (4_000, 2)) @ [1, -1]
    margins = starts[:, None] + chance.normal(0, 0.01 * math.sqrt(2), (4_000, 11))
    evidence, _ = rule.log_evidence(margins)
    needed = -math.log(rule.level)
    passed = (evidence[:, rule.min_units - 1 :] >= needed).any(axis=1).mean()
    assert passed <= most + 2 * math.sqrt(most / 4_000)
    bare, _ = RULE.log_evidence(margins)
    assert differ == 0 or (bare >= -math.log(0.05)).any(axis=1).mean() > 0.2


@given(st.lists(st.integers(-3, 3), min_size=3, max_size=22), st.sampled_from([0.01, 0.05, 0.2]))
def test_bounds_agree_with_the_verdict(tenths: list[int], alpha: float) -> None:
    """It passes only where the lower bound is above the minimum, and fails only below the upper."""
    rule = ThroughputRatioRule(min_ratio=1.2, alpha=alpha, blocks=20)
    found = rule.evaluate_margins(np.array(tenths) / 10)
    if found.state == "pass":
        assert found.lower is not None
        assert found.lower > rule.min_ratio
    if found.state == "fail":
        assert found.upper is not None
        assert found.upper < rule.min_ratio
    if found.p_value > alpha:
        assert found.state != "pass"


@pytest.mark.parametrize(
    ("gain", "blocks", "share"), [(0.02, 20, 0.4), (0.05, 8, 0.98), (0.1, 5.5, 0.98)]
)
def test_what_is_better_passes(gain: float, blocks: float, share: float) -> None:
    """With 2 % of noise a load: the mean number of blocks, and how many pass within 20."""
    noise = np.random.default_rng(4).normal(0, 0.02 * math.sqrt(2), (300, 22))
    found = [RULE.evaluate_margins(run) for run in noise + math.log1p(gain)]
    assert np.mean([each.state == "pass" for each in found]) >= share
    assert np.mean([each.decided_at or RULE.cap for each in found]) <= blocks


def test_a_rule_comes_from_plain_data() -> None:
    data = RULE.model_dump()
    assert parse_rule(data) == RULE
    for wrong in ({"alpha": 0.5}, {"min_ratio": 0.0}, {"blocks": 0}, {"block": 20}):
        with pytest.raises(ValidationError):
            parse_rule({**data, **wrong})


def test_measuring_ends_where_the_evidence_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecided: hours of loads that nobody could read would be worth nothing."""
    close = blocks([1.0, 1.01] * 2)
    assert RULE.needs_more(close)
    monkeypatch.setattr("eval_gates.speed.load_run.MAX_CHARACTERS", 96 * 40 * 10)
    assert RULE.needs_more(close[:6])
    assert not RULE.needs_more(close)
    assert RULE.evaluate(close).state == "open"


def test_the_rate_of_a_start_is_the_median_of_its_loads() -> None:
    loads = [load for n in range(5) for load in block(n, 1.1 if n < 4 else 3.0)]
    rates = RULE.log_rates(loads)
    assert rates["baseline"] == [pytest.approx(math.log(40))]
    assert rates["candidate"] == [pytest.approx(math.log(44))]
    two = [load.model_copy(update={"server_run": load.block // 4}) for load in blocks([1.0] * 8)]
    assert [len(each) for each in RULE.log_rates(two).values()] == [2, 2]

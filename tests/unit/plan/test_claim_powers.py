"""A policy's speed gates, told before a run."""

from __future__ import annotations

from typing import Any

import pytest

from eval_gates.speed.sequential_rule import WARM_UP_SECONDS
from pipeline.core.errors import UsageError
from pipeline.plan.speed_power import check_claims_decidable, claim_powers
from recipes.catalog import load_policy, load_profile
from recipes.policy import Policy

SLO = {"workload": "support", "rate": 4, "limits": {"ttft_ms_p95": 800}}


def policy(**speed: Any) -> Policy:
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mmlu": {"kind": "mmlu", "margins": {"fp8": 0.01}}},
            "speed": speed or None,
        }
    )


def test_each_claim_has_its_units_minutes_and_chances() -> None:
    ratio, slo = claim_powers(
        policy(ratio={"min_ratio": {"cuda": 1.2}, "workloads": ["elsewhere"]}, slo=[SLO]), 1
    )
    assert (ratio.gate, ratio.unit, ratio.most, ratio.minutes) == (
        "ratio.elsewhere",
        "blocks",
        20,
        None,
    )
    assert "1.2 of the baseline" in ratio.claim
    assert (slo.gate, slo.unit, slo.most) == ("slo.0", "rounds", 40)
    assert slo.minutes is not None
    assert slo.minutes > 0
    assert all(0 <= each.passes <= 1 for each in (*ratio.chances, *slo.chances))
    assert ratio.to_dict()["chances"][0]["truth"] == pytest.approx(1.224)
    assert claim_powers(policy(), 1) == ()


def test_more_variants_need_more() -> None:
    one, four = (claim_powers(policy(slo=[SLO]), tried)[0] for tried in (1, 4))
    assert four.alpha == pytest.approx(one.alpha / 4)
    assert one.fewest is not None
    assert four.fewest is not None
    assert one.fewest < four.fewest


def test_the_baselines_limits_cost_twice_the_time() -> None:
    alone, both = (
        claim_powers(policy(slo=[{**SLO, "compare": compare}]), 1)[0].minutes
        for compare in ("absolute", "baseline")
    )
    assert alone is not None
    assert both == pytest.approx(2 * alone)


def test_what_no_server_could_pass_is_refused_where_it_blocks() -> None:
    short = {**SLO, "rounds": 12}
    for tier, refused in (("critical", True), ("advisory", False)):
        mine = policy(slo=[{**short, "tier": tier}])
        powers = claim_powers(mine, 1)
        assert powers[0].fewest is None
        if refused:
            with pytest.raises(UsageError) as caught:
                check_claims_decidable(mine, powers)
            assert "speed.slo[0].rounds" in str(caught.value.where)
        else:
            check_claims_decidable(mine, powers)


def test_a_profiles_lives_cost_power() -> None:
    """Which `prepare plan` tells, and `prepare policy check` cannot know."""
    mine = policy(ratio={"min_ratio": {"cpu": 1.0}, "workloads": ["chat"]})
    profile = load_profile("cpu")
    (alone,), (served,) = claim_powers(mine, 1), claim_powers(mine, 1, profile)
    assert profile.restart_stddev > 0
    assert alone.minutes == pytest.approx(2 * 22 * 1.2 * 30 / 60)
    assert served.minutes == pytest.approx(2 * 22 * 1.2 * profile.workloads["chat"].seconds / 60)
    for before, after in zip(alone.chances, served.chances, strict=True):
        assert after.passes < before.passes or before.passes == after.passes == 1


def test_starts_of_servers_are_in_the_minutes() -> None:
    mine = policy(ratio={"min_ratio": 1.0, "workloads": ["chat"]})
    cpu = load_profile("cpu")
    alternating = cpu.model_copy(update={"server_mode": "interleaved"})
    seconds = cpu.workloads["chat"].seconds
    (together,) = claim_powers(mine, 1, cpu, start_seconds=100)
    (claim,) = claim_powers(mine, 1, alternating, start_seconds=100)
    assert (together.unit, together.starts) == ("blocks", 0)
    assert (claim.unit, claim.most, claim.starts) == ("pairs of server runs", 20, 40)
    assert claim.minutes == pytest.approx((40 * 100 + 20 * 2 * 3 * 1.2 * seconds) / 60)


def test_the_default_gate_takes_at_most_20_minutes_of_a_gpu_that_has_room_for_two() -> None:
    """By the assumed start of two minutes; 84 where each pair of starts is one value."""
    mine, h100 = load_policy("default"), load_profile("h100")
    minutes = {}
    for mode in ("concurrent", "swapped", "interleaved"):
        (claim,) = claim_powers(mine, 2, h100.model_copy(update={"server_mode": mode}))
        assert claim.fewest is not None
        assert claim.fewest <= claim.most
        minutes[mode] = claim.gpu_minutes
        # As in benchmarks/results/server_modes.json, whose starts differ as much.
        replayed = {"concurrent": 0.34, "swapped": 0.77, "interleaved": 0.98}[mode]
        assert claim.chances[-1].passes == pytest.approx(replayed, abs=0.05)
    assert minutes["concurrent"] == pytest.approx(2 * 2 + 13 * 2 * 0.6)
    # Two GPUs for two phases, each of a start and 13 blocks of both sides at the same time.
    assert minutes["swapped"] == pytest.approx(2 * 2 * (2 + 13 * 0.6))
    assert minutes["interleaved"] == pytest.approx(11 * (2 * 2 + 6 * 0.6))
    two = {"engine_arguments": {"tensor-parallel-size": 2}, "server_mode": "concurrent"}
    (claim,) = claim_powers(mine, 2, h100.model_copy(update=two))
    assert claim.gpu_minutes == pytest.approx(2 * minutes["concurrent"])
    (claim,) = claim_powers(mine, 2, load_profile("cpu"))
    assert claim.gpu_minutes is None


@pytest.mark.parametrize("variants", [1, 2, 5, 8])
def test_the_default_gate_can_decide_several_variants(variants: int) -> None:
    for name in ("h100", "cpu"):
        for mode in ("concurrent", "swapped", "interleaved"):
            profile = load_profile(name).model_copy(update={"server_mode": mode})
            powers = claim_powers(load_policy("default"), variants, profile)
            check_claims_decidable(load_policy("default"), powers)


def test_the_warm_up_of_short_blocks_takes_its_time() -> None:
    """Blocks of the first half minute count for nothing, however many they are."""
    short = {"kind": "random", "input_tokens": 8, "output_tokens": 8, "seconds": 2}
    workloads = {"short": {**short, "arrivals": {"concurrency": 2}}}
    ratio = {"min_ratio": {"cpu": 1.0}, "workloads": ["short"]}
    (claim,) = claim_powers(policy(ratio=ratio, workloads=workloads), 1, load_profile("cpu"))
    block = 2 * 1.2 * 2
    assert claim.minutes == pytest.approx((20 * block + 7 * block) / 60)
    assert 7 * block >= WARM_UP_SECONDS > 6 * block

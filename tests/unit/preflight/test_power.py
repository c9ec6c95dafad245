"""The one formula of power: against replays, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_by_suite import known_by_suite

from eval_gates.speed.rules import SpeedRule
from eval_gates.statistics.assay_sensitivity import check_sensitivity
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import findings, first_decided
from eval_gates.statistics.multiplicity import gate_level
from pipeline.plan.known_questions import KnownQuestions
from pipeline.preflight.chances import GatePower, chance_of_sensitivity, chances, format_chance
from pipeline.preflight.power import (
    check_power,
    joint_power,
    policy_power,
    promotion_power,
)
from pipeline.preflight.speed_power import BlockNoise, speed_chance, speed_power
from prepare.errors import UsageError
from recipes.catalog import load_policy, load_profile, load_recipe
from recipes.measured_ratios import find_measured
from recipes.policy import Policy

FP8 = [load_recipe("fp8-dynamic")]
BOTH = [load_recipe("fp8-dynamic"), load_recipe("awq-w4a16")]
COUNTS = {
    **{"mmlu": 14_042, "code": 542, "rouge": 11_490, "ifeval": 541, "gsm8k": 1319, "tools": 2116},
    **{"needles": 600, "mmlu_pro": 3000, "bleu": 2000},
}


def level_of(policy: Policy, variants: int) -> float:
    return gate_level(policy.alpha, policy.attempts, variants)


def replay(
    comparison: Comparison, n: int, flips: float, loss: float, runs: int = 250
) -> tuple[float, float]:
    draw, passed, failed = np.random.default_rng(1), 0, 0
    chance = [(flips + loss) / 2, 1 - flips, (flips - loss) / 2]
    for _ in range(runs):
        change = draw.choice([-1, 0, 1], size=n, p=chance)
        before = np.where(change == 0, draw.random(n) < 0.5, change < 0).astype(float)
        found = first_decided(
            findings(before.tolist(), (before + change).tolist(), comparison, 0.025, n)
        )
        passed += found.state == "pass"
        failed += found.state == "fail"
    return passed / runs, failed / runs


@pytest.mark.parametrize(
    ("comparison", "n", "flips", "loss"),
    [
        (Comparison.points(0.02), 2000, 0.10, 0.008),
        (Comparison.points(0.02), 2000, 0.04, 0.0),
        (Comparison.points(0.05), 300, 0.08, 0.0),
        (Comparison.points(0.02), 600, 0.12, 0.06),
        (Comparison.points(0.25), 40, 0.15, 0.0),
        (Comparison.recovery(0.96), 2000, 0.08, 0.005),
    ],
)
def test_it_agrees_with_replays(comparison: Comparison, n: int, flips: float, loss: float) -> None:
    told = chances(comparison, 0.025, n, flips=flips, loss=loss)
    passed, failed = replay(comparison, n, flips, loss)
    assert told.passes == pytest.approx(passed, abs=0.09)
    assert told.fails == pytest.approx(failed, abs=0.09)


@pytest.mark.parametrize(
    ("comparison", "n", "guessing", "baseline"),
    [
        (Comparison.points(0.02), 2000, 0.25, 0.28),
        (Comparison.points(0.02), 2000, 0.25, 0.3),
        (Comparison.points(0.05), 100, 0.0, 0.15),
        (Comparison.recovery(0.9), 280, 0.25, 0.35),
        (Comparison.recovery(0.8), 20, 0.0, 0.1),
        (Comparison.points(0.1), 5, 0.25, 0.9),
        (Comparison.recovery(0.9), 280, 0.25, 0.6),
    ],
)
def test_the_chance_of_sensitivity_agrees_with_replays(
    comparison: Comparison, n: int, guessing: float, baseline: float
) -> None:
    told = chance_of_sensitivity(comparison, 0.025, n, guessing=guessing, baseline=baseline)
    draw = np.random.default_rng(1)
    shown = [
        check_sensitivity(
            "guessing", list((draw.random(n) < baseline).astype(float)), guessing, comparison
        ).p_insensitive
        <= 0.025
        for _ in range(250)
    ]
    assert told == pytest.approx(np.mean(shown), abs=0.1)


def test_a_baseline_that_may_know_too_little_is_in_the_chance() -> None:
    def told(**more: float) -> GatePower:
        suite = {"kind": "mmlu", "margins": {"fp8": 0.02}, **more}
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"m": suite}})
        check_power(policy, FP8, known_by_suite({"m": 2000}), 0.05)  # an assumption refuses nothing
        (gate,) = policy_power(policy, FP8, known_by_suite({"m": 2000}), 0.05)
        return gate

    usual = told()
    low = told(assumed_baseline=0.28)
    assert usual.passes is not None
    assert low.passes is not None
    assert low.passes < 0.3 < 0.9 < usual.passes
    assert "assumed to score 28 %" in low.words
    assert "assumed" not in usual.words


def test_a_recoverys_baseline_is_named_and_can_be_given() -> None:
    for given, named in ((None, "50 %"), (0.9, "90 %")):
        suite = {"kind": "mmlu", "margins": {"fp8": {"recovery": 0.95}}, "assumed_baseline": given}
        policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"m": suite}})
        (gate,) = policy_power(policy, FP8, known_by_suite({"m": 2000}), 0.05)
        assert f"assumed to score {named}" in gate.words


@pytest.mark.parametrize(
    ("name", "least"),
    [("default", 0.9), ("strict", 0.8), ("general", 0.8), ("code", 0.9), ("reasoning", 0.9)],
)
def test_carried_policies_pass_their_usual_variants(name: str, least: float) -> None:
    policy = load_policy(name)
    known = known_by_suite({suite: COUNTS[suite] for suite in policy.suites})
    for passes, usual in joint_power(
        policy_power(policy, BOTH, known, level_of(policy, 2))
    ).values():
        assert usual is not None
        assert usual >= least
        assert passes is not None
        assert passes >= usual
    check_power(policy, BOTH, known, level_of(policy, 2))


def made(**suite: Any) -> Policy:
    mmlu = {"kind": "mmlu", "margins": {"fp8": 0.02}, **suite}
    other = {"kind": "humaneval", "margins": {"fp8": 0.3}}
    return Policy.model_validate(
        {"name": "p", "summary": "s", "suites": {"mmlu": mmlu, "code": other}}
    )


@pytest.mark.parametrize(
    ("suite", "available", "words"),
    [
        ({}, 100, "cannot decide its margin"),
        ({"margins": {"fp8": 0.75}}, 3000, "could not tell a good variant"),
        ({"margins": {"fp8": {"recovery": 0.25}}}, 3000, "could not tell a good variant"),
        ({"usual": {"fp8": {"flips": 0.3}}}, 400, "would pass only"),
    ],
)
def test_hopeless_suites_are_refused(suite: dict[str, Any], available: int, words: str) -> None:
    known = known_by_suite({"mmlu": available, "code": 164})
    with pytest.raises(UsageError, match=words) as caught:
        check_power(made(**suite), FP8, known, 0.05)
    assert caught.value.where == "policy key suites.mmlu.margins.fp8"
    check_power(made(**suite, tier="advisory"), FP8, known, 0.05)


@pytest.mark.parametrize("available", [499, 500, None])
def test_a_cost_without_enough_problems_is_refused(available: int | None) -> None:
    policy = load_policy("reasoning")
    known = known_by_suite({"gsm8k": available, "mmlu_pro": 3000})
    if available != 499:
        check_power(policy, FP8, known, level_of(policy, 1))
        return
    with pytest.raises(UsageError, match="the cost of 'gsm8k' cannot be decided"):
        check_power(policy, FP8, known, level_of(policy, 1))
    assert policy.cost is not None
    cost = policy.cost.model_copy(update={"tier": "advisory"})
    with_cost = policy.model_copy(update={"cost": cost})
    check_power(with_cost, FP8, known, level_of(policy, 1))


def test_a_supporting_suite_may_be_unlikely_to_pass() -> None:
    suite = {"usual": {"fp8": {"flips": 0.3}}, "tier": "supporting"}
    policy = made(**suite)
    known = known_by_suite({"mmlu": 400, "code": 164})
    check_power(policy, FP8, known, level_of(policy, 1))
    gate = policy_power(policy, FP8, known, level_of(policy, 1))[0]
    assert "fails" in gate.words
    assert gate.passes is not None
    assert gate.passes > 0.95


def test_values_of_a_field_that_are_too_rare_are_told() -> None:
    suite = {"kind": "rouge", "margins": {"fp8": 0.1}, "parts_by": "tongue"}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"m": suite}})
    known = KnownQuestions(questions=300, clusters=None, parts={"en": 200, "fr": 97, "it": 3})
    (gate,) = policy_power(policy, FP8, {"m": known}, 0.05)
    told = "of 3 values of 'tongue' (a fall from 30 to 0 %), the loss of one is mostly seen for 2; "
    assert f"{told}in too few questions: it in 3" in gate.words
    assert "questions (a pass takes all of them);" in gate.words


def test_a_score_on_other_questions_is_not_known() -> None:
    policy = made(kind="rouge", margins={"fp8": 0.2})
    known = known_by_suite({"mmlu": 200, "code": 164})
    gate = policy_power(policy, FP8, known, level_of(policy, 1))[0]
    assert "how they score there is not known yet" in gate.words


def test_tiny_chances_have_no_number() -> None:
    assert (format_chance(4.2e-203), format_chance(1e-3)) == ("practically none", "< 1 %")


def test_an_unknown_number_is_told_later() -> None:
    policy = made()
    known = known_by_suite({"mmlu": None, "code": 164})
    check_power(policy, FP8, known, level_of(policy, 1))
    gate = policy_power(policy, FP8, known, level_of(policy, 1))[0]
    assert (gate.units, gate.passes) == (None, None)
    assert joint_power([gate]) == {"fp8": (None, None)}


def test_few_flips_are_not_normal() -> None:
    """Needles: 95.9 % by the normal formula, 93.1 % in replays."""
    comparison = Comparison.points(0.03)
    told = chances(comparison, 0.025, 600, flips=0.02, loss=0.003)
    generator = np.random.default_rng(7)
    passed = 0
    for _ in range(120):
        change = generator.choice([-1, 0, 1], size=600, p=[0.0115, 0.98, 0.0085])
        before, after = (change < 0).astype(float), (change > 0).astype(float)
        passed += (
            first_decided(findings(before.tolist(), after.tolist(), comparison, 0.025, 600)).state
            == "pass"
        )
    assert told.passes == pytest.approx(passed / 120, abs=0.07)
    assert chances(comparison, 0.025, 600, flips=0.0, loss=0.0).passes == 1


def test_a_promotion_takes_all_suites_and_the_speed() -> None:
    policy = load_policy("default")
    known = known_by_suite({suite: COUNTS[suite] for suite in policy.suites})
    suites = policy_power(policy, BOTH, known, level_of(policy, 2))
    power = (*suites, *speed_power(policy, load_profile("h100"), level_of(policy, 2)))
    for family, (equal, faster) in promotion_power(power).items():
        assert equal is not None
        assert faster is not None
        alone = joint_power(suites)[family][1]
        assert alone is not None
        assert equal < faster < alone
        assert (equal < 0.8, faster > 0.85) == (True, True)


def test_what_was_measured_before_is_in_the_results() -> None:
    kept = json.loads((Path(__file__).parents[3] / "benchmarks/results/h100.json").read_text())
    measured = find_measured("h100-kv16")
    assert measured is not None
    loads = kept["served_side_by_side"]["loads"]
    for family, variant in (("fp8", "fp8"), ("int4", "w4a16")):
        for requests, (least, most) in measured.ratios[family].items():
            means = [
                round(sum(load["ratio_to_bf16"]) / len(load["ratio_to_bf16"]), 2)
                for load in loads
                if (str(load["concurrent"]), load["variant"]) == (requests, variant)
            ]
            assert (min(means), max(means)) == pytest.approx((least, most), abs=0.011)
    assert find_measured("l4") is None


class TestSpeed:
    def test_more_blocks_and_a_faster_variant_pass_more_often(self) -> None:
        def passes(blocks: int, starts: str = "fresh") -> list[float]:
            rule = SpeedRule(
                kind="ratio", min_ratio=0.95, alpha=0.025, blocks=blocks, starts=starts
            )
            return [speed_chance(rule, truth).passes for truth in (1.0, 1.05, 1.1)]

        five, eight, once = passes(5), passes(8), passes(5, "once")
        assert all(a < b for a, b in zip(five, eight, strict=True))
        assert all(a < b for a, b in zip(five, once, strict=True))
        # As benchmarks/speed_power.py replays it.
        assert five == pytest.approx([0.43, 0.91, 1.0], abs=0.03)

    def test_at_the_threshold_it_errs_as_often_as_its_level(self) -> None:
        at = speed_chance(SpeedRule(kind="ratio", min_ratio=1.0, alpha=0.025, blocks=5), 1.0)
        assert (at.passes, at.fails) == (pytest.approx(0.025), pytest.approx(0.025))
        limit = SpeedRule(kind="slo", limits={"ttft_ms_p95": 800}, alpha=0.025, blocks=6)
        assert speed_chance(limit, 1.05).passes < speed_chance(limit, 1.25).passes

    def test_a_gate_says_what_it_takes(self) -> None:
        policy, profile = load_policy("default"), load_profile("h100")
        gate, single, full = speed_power(
            policy, profile, level_of(policy, 2), families=["fp8", "int4"]
        )
        assert (gate.units, gate.alpha) == (7, pytest.approx(0.025))
        assert "64 concurrent requests, 1,024 tokens in, 256 out" in gate.words
        assert "(assumed)" in gate.words
        assert "int4 1.48 at 1, 1.10 at 64, 0.93 to 0.98 at 256" in gate.words
        assert [each.tier for each in (single, full)] == ["supporting"] * 2
        assert "the starts of ratio.chat" in full.words
        assert "ratio.chat, critical" in gate.words
        assert "14 starts of servers" in gate.words
        quiet = speed_power(policy, profile, level_of(policy, 2), measured=BlockNoise(0.02, 12))[0]
        assert "a block varies by 2.0 % (measured here in 12 blocks)" in quiet.words
        assert quiet.passes is not None
        assert gate.passes is not None
        assert quiet.passes > gate.passes
        strict = load_policy("strict")
        *_, limits = speed_power(strict, load_profile("h100"), level_of(strict, 2))
        assert limits.units == 8

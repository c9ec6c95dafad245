"""A ratio of goodputs: which rates are tested, what decides, how often it errs."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from measured_loads import round_of

from eval_gates.speed.course import BOTH, SEARCH, TESTS, Course, RatesTest
from eval_gates.speed.goodput import GoodputRule
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.power import replay_goodput, speed_power
from eval_gates.speed.report import judge_speed
from eval_gates.speed.rule import rule_of

RULE = GoodputRule(
    minimum=1.2, limits={"ttft_ms_p95": 800}, share=0.5, alpha=0.05, rounds=40, start=3.0
)


FEWEST = 6  # rounds that all show the same: each of two tests has half of 5 %


def measure(
    rule: GoodputRule, candidate: float, baseline: float = 10.0, **odd: Any
) -> list[MeasuredLoad]:
    """Loads of two servers that keep the limits up to their goodputs; `odd` of the last ones."""
    loads: list[MeasuredLoad] = []
    goodputs = {"baseline": baseline, "candidate": candidate}
    while rates := rule.next_rates(loads):
        block = len(loads) // 2
        loads += [
            round_of(
                block,
                side=side,
                place=place,
                rate=rate,
                ttft_s=0.1 if rate <= goodputs[side] else 1.0,
            )
            for place, (side, rate) in enumerate(rates.items())
        ]
        if odd and block == odd.get("at"):
            loads[-1] = loads[-1].model_copy(update=odd["changes"])
    return loads


@pytest.mark.parametrize(("candidate", "state"), [(15.0, "pass"), (9.0, "fail")])
def test_two_rates_as_far_apart_as_the_claim_decide_it(candidate: float, state: str) -> None:
    loads = measure(RULE, candidate)
    found = RULE.finding(loads)
    assert found.state == state
    assert found.course is not None
    (test,) = found.course.tests
    assert test.rates["candidate"] == pytest.approx(1.2 * test.rates["baseline"])
    assert [each > 0 for each in test.margins["candidate"]] == [state == "pass"] * FEWEST
    assert [each > 0 for each in test.margins["baseline"]] == [state == "fail"] * FEWEST
    assert found.estimate == pytest.approx(candidate / 10, rel=0.08)
    assert (found.lower, found.upper) == ((1.2, None) if state == "pass" else (None, 1.2))
    assert found.n == found.decided_at == len(loads) // 2
    assert [point.n for point in found.trail] == list(range(test.begins + 1, found.n + 1))
    assert found.trail[-1].log10_e_pass < math.log10(20) or state == "pass"
    assert found.p_value <= 0.05 or state == "fail"


def test_rounds_of_the_search_are_no_evidence() -> None:
    loads = measure(RULE, 15.0)
    begins = RULE.finding(loads).course.tests[0].begins  # type: ignore[union-attr]
    found = RULE.finding(loads[: 2 * begins])
    assert (found.state, found.p_value, found.trail) == ("open", 1.0, ())


def test_at_the_very_ratio_it_ends_undecided_and_never_passes_too_often() -> None:
    """Steep and shallow, from starts far off: a pass or a fail in at most 5 % each."""
    chance = random.Random(3)
    for noise in (0.02, 0.15):
        states = []
        for _ in range(60):
            rule = RULE.model_copy(update={"start": chance.uniform(0.5, 60)})
            course = replay_goodput(rule, chance, 10.0, 12.0, noise)
            assert course.rounds <= rule.cap
            states.append(rule.finding_of(course).state)
        assert states.count("pass") <= 5
        assert states.count("fail") <= 5


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("wrong", BOTH)
def test_where_one_half_of_the_claim_is_certain_the_other_errs_as_seldom_as_said(
    share: float, wrong: str
) -> None:
    """The worst case of a claim of two parts: a rate at which one of them is just wrong."""
    chance, needed, passed, runs = random.Random(5), RULE.needed(0.05), 0, 1500
    for _ in range(runs):
        test = RatesTest(0, {"baseline": 10.0, "candidate": 12.0}, share)
        for _ in range(40):
            at_the_boundary = chance.random() < share
            test.add({"baseline": -1.0, "candidate": 1.0} | {wrong: at_the_boundary - 0.5})
        passed += test.evidence[-1][0] >= needed
    assert passed / runs <= 0.05 / TESTS


def test_both_sides_keeping_their_limits_moves_the_rates_up_and_neither_down() -> None:
    for kept in (True, False):
        course = Course(RULE)
        while not course.is_testing:
            course.add({side: 10.5 - rate for side, rate in course.rates.items()})
        before = course.rates["baseline"]
        while course.is_testing and len(course.tests) == 1:
            course.add(dict.fromkeys(BOTH, kept - 0.5))
        while course.rates and not course.is_testing:
            course.add({side: 10.5 - rate for side, rate in course.rates.items()})
        assert len(course.tests) == TESTS
        assert (course.rates["baseline"] > before) is kept


@pytest.mark.parametrize("minimum", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("goodput", [0.5, 500.0])
def test_no_side_is_tested_at_a_rate_with_too_few_requests_or_too_many(
    minimum: float, goodput: float
) -> None:
    """P95 of the few requests of a trickle is kept by a server that keeps it at no rate asked."""
    rule = RULE.model_copy(update={"minimum": minimum, "lowest": 2.0, "highest": 100.0})
    course = Course(rule)
    while course.rates:
        rates = course.rates.values()
        assert min(rates) >= 2.0 - 1e-9
        assert max(rates) <= 100.0 + 1e-9
        course.add({side: goodput + 1e-9 - rate for side, rate in course.rates.items()})
    assert course.tests


def test_the_judges_error_rate_changes_no_rates() -> None:
    """Measured for one of several variants at a smaller error rate, and judged at the policy's."""
    steered = RULE.model_copy(update={"alpha": 0.01, "steered_by": 0.01})
    loads = measure(steered, 15.0)
    judged = RULE.model_copy(update={"steered_by": 0.01})
    found = judged.finding(loads)
    assert found.state == "pass"
    assert found.decided_at is not None
    assert found.decided_at < found.n == steered.finding(loads).decided_at
    with pytest.raises(ValueError, match="round 20 "):
        RULE.finding([*loads, *measure(RULE, 15.0)])


def test_other_rates_than_were_asked_for_are_no_rounds_of_it() -> None:
    loads = measure(RULE, 15.0)
    loads[6] = loads[6].model_copy(update={"rate": 1.01 * (loads[6].rate or 0)})
    with pytest.raises(ValueError, match="round 3"):
        RULE.finding(loads)
    with pytest.raises(ValueError, match="round 0"):
        RULE.finding(measure(RULE, 15.0)[:1])


def test_a_client_that_is_too_slow_ends_a_test_and_only_bounds_a_search() -> None:
    late = {"client_lag_s": 0.5}
    searched = measure(RULE, 15.0, at=1, changes=late)
    assert RULE.finding(searched).state == "pass"
    assert len(searched) > len(measure(RULE, 15.0))  # that rate was looked at again
    last = [each.model_copy(update=late) for each in searched[-2:]]
    found = RULE.finding([*searched[:-2], *last])
    assert (found.state, {cause.kind for cause in found.refused}) == ("refused", {"client_lag"})
    declared = RULE.model_copy(update={"hit_rate": 0.8})
    assert declared.finding(searched[:2]).state == "refused"
    assert not declared.wants_more(searched[:2])


def test_lives_that_differ_ask_for_rates_that_are_further_apart() -> None:
    """To pass above the claim, to fail below it; an equal pair of servers does neither."""
    lives = RULE.model_copy(update={"allowance": 0.05, "allowance_alpha": 0.025})
    for candidate, times, state in ((15.0, 1.05, "pass"), (9.0, 1 / 1.05, "fail")):
        found = lives.finding(measure(lives, candidate))
        assert found.state == state
        assert found.course is not None
        rates = found.course.tests[0].rates
        assert rates["candidate"] / rates["baseline"] == pytest.approx(1.2 * times, rel=0.01)
        assert found.p_value > 0.025
    with pytest.raises(ValueError, match="alpha"):
        GoodputRule.model_validate({**RULE.model_dump(), "allowance_alpha": 0.05})


def test_what_it_can_show_is_foreseen() -> None:
    power = speed_power(RULE)
    assert power.fewest is not None
    assert power.fewest < 30
    small, quarter, half = power.chances
    assert [each.truth for each in power.chances] == pytest.approx([1.32, 1.5, 1.8])
    assert small.passes <= quarter.passes <= half.passes
    assert half.passes > 0.8
    assert half.units < small.units <= TESTS * (SEARCH + 40)
    assert speed_power(RULE.model_copy(update={"rounds": 5})).fewest is None


def test_the_report_says_which_rates_were_tested() -> None:
    rule = RULE.model_dump()
    report = judge_speed(
        "goodput", "goodput", workload="chat", tier="critical", rule=rule, loads=measure(RULE, 15.0)
    )
    assert (report.verdict, report.lower, report.threshold) == ("pass", 1.2, 1.2)
    assert [(each.side, each.rounds, each.kept) for each in report.tests] == [
        ("baseline", FEWEST, 0),
        ("candidate", FEWEST, FEWEST),
    ]
    assert report.goodputs == pytest.approx({"baseline": 10, "candidate": 15}, rel=0.06)
    assert {point.kept for point in report.points if point.side == "baseline"} == {True, False}
    assert f"{report.tests[1].requests_per_s:.4g} requests/s" in report.reason
    assert type(report).model_validate_json(report.model_dump_json()) == report
    nothing = judge_speed(
        "goodput", "goodput", workload="chat", tier="critical", rule=rule, loads=[]
    )
    assert (nothing.verdict, nothing.reason) == ("undecided", "not measured")


def test_a_rule_comes_from_plain_data() -> None:
    assert rule_of("goodput", RULE.model_dump()) == RULE


def in_life(loads: list[MeasuredLoad], lives: dict[int, int]) -> list[MeasuredLoad]:
    """The loads from each of these rounds on in that life of the servers."""
    found = []
    for load in loads:
        life = max((life for begins, life in lives.items() if begins <= load.block), default=0)
        found.append(load.model_copy(update={"life": life}))
    return found


class TestLostLives:
    """Who kills a round that looks bad gains nothing by it."""

    def test_a_lost_life_is_a_round_for_neither_side(self) -> None:
        whole = measure(RULE, 15.0)
        begins = RULE.finding(whole).course.tests[0].begins  # type: ignore[union-attr]
        lost = in_life(whole, {begins + 3: 1})
        found = RULE.finding(lost)
        assert (found.state, found.n) == ("open", len(whole) // 2 + 1)
        assert RULE.wants_more(lost)
        assert found.course is not None
        (test,) = found.course.tests
        assert test.rounds_of("candidate") == FEWEST
        assert math.isnan(test.margins["baseline"][3])

    def test_of_a_search_it_counts_for_nothing(self) -> None:
        whole = measure(RULE, 15.0)
        searched = in_life(whole, {1: 1, 2: 3})
        assert RULE.finding(searched).trail == RULE.finding(whole).trail

    def test_lives_that_alternate_are_two_a_round(self) -> None:
        rule = RULE.model_copy(update={"lives": "alternate"})
        whole = [
            each.model_copy(update={"life": number}) for number, each in enumerate(measure(rule, 9))
        ]
        assert rule.finding(whole).state == "fail"
        lost = [
            each.model_copy(update={"life": each.life + (n >= len(whole) - 3)})
            for n, each in enumerate(whole)
        ]
        assert rule.finding(lost).state == "open"

    @pytest.mark.parametrize("kills", [2, 10])
    def test_whoever_kills_rounds_that_look_bad_passes_no_more_often(self, kills: int) -> None:
        """One half of the claim is certain, the other at its boundary."""
        chance, needed, passed, runs = random.Random(kills), RULE.needed(0.05), 0, 400
        for _ in range(runs):
            test = RatesTest(0, {"baseline": 10.0, "candidate": 12.0}, 0.5)
            left = kills
            while len(test.evidence) < 40:
                margin = chance.choice([-1.0, 1.0])
                if margin < 0 and left:
                    left -= 1
                    test.add(dict.fromkeys(BOTH, math.nan))
                else:
                    test.add({"baseline": -1.0, "candidate": margin})
            passed += test.evidence[-1][0] >= needed
        assert passed / runs <= 0.05


class TestDrift:
    def test_a_verdict_waits_while_a_side_runs_towards_the_other(self) -> None:
        needed = RULE.needed(0.05)
        steady, falling = (
            RatesTest(0, {"baseline": 10.0, "candidate": 12.0}, 0.5) for _ in range(2)
        )
        for number in range(FEWEST):
            steady.add({"baseline": -1.0, "candidate": 1.0})
            falling.add({"baseline": -1.0, "candidate": 1.0 - 0.15 * number})
        assert (steady.decides(FEWEST, needed), steady.is_open(needed)) == ("pass", False)
        assert (falling.decides(FEWEST, needed), falling.is_open(needed)) == (None, True)
        assert falling.undone("pass") == ["candidate"]
        for _ in range(3 * FEWEST):
            falling.add({"baseline": -1.0, "candidate": 0.5})
        assert falling.decides(4 * FEWEST, needed) == "pass"

    def test_what_drifts_to_the_end_is_refused_by_name(self) -> None:
        """The baseline warms up: at the end it would keep its limits."""
        rule = RULE.model_copy(update={"rounds": 12})
        whole = measure(rule, 15.0)
        begins = rule.finding(whole).course.tests[0].begins  # type: ignore[union-attr]
        loads = whole[: 2 * begins]
        while rates := rule.next_rates(loads):
            block = len(loads) // 2
            slow = 0.8 + 0.5 * 0.6 ** (block - begins)
            loads += [
                round_of(block, side=side, place=place, rate=rate, ttft_s=ttft)
                for place, (side, rate) in enumerate(rates.items())
                for ttft in [slow if side == "baseline" else 0.1]
            ]
        found = rule.finding(loads)
        assert (found.state, found.decided_at, found.p_value) == ("refused", None, 1.0)
        (cause,) = found.refused
        assert (cause.kind, cause.side) == ("drift", "baseline")
        assert len(loads) == 2 * (begins + 12)


def test_measuring_ends_where_the_evidence_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = measure(RULE, 15.0)[:8]
    assert RULE.next_rates(searched)
    monkeypatch.setattr("eval_gates.speed.load.MAX_LETTERS", 1)
    assert RULE.next_rates(searched) == {}
    assert RULE.finding(searched).state == "open"

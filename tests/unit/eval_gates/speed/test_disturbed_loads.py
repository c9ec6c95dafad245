"""Faults of loads: what each does, and that nobody gains by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from measured_loads import block, blocks, requests_in_waves, round_of

from eval_gates.speed.invalid_reasons import FaultKind
from eval_gates.speed.load_run import EngineCounters, Interference, LoadRun
from eval_gates.speed.result import SpeedTestResult
from eval_gates.speed.sequential_rule import LOST_SECONDS
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from eval_gates.speed.validity import HANDLING

RATIO = ThroughputRatioRule(min_ratio=1.0, alpha=0.05, blocks=20, settled=0)
LIMITS = SloRule(limits={"ttft_ms_p95": 800}, slo_attainment=0.5, alpha=0.05, rounds=20, settled=0)
THROTTLED = {"interference": [Interference(kind="throttled", what="power cap")]}


def failing() -> dict[str, Any]:
    requests = requests_in_waves().model_dump()
    for column in ("ttft_s", "end_s", "longest_pause_s"):
        requests[column][3] = None
    requests["output_tokens"][3], requests["error"][3] = 0, "HTTP 500"
    return {"requests": requests}


def test_each_kind_of_fault_is_in_the_table() -> None:
    assert set(HANDLING) == set(get_args(FaultKind))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("throttled", THROTTLED),
        ("failed_requests", failing()),
        ("too_short", {"requests": requests_in_waves(3)}),
        (
            "hit_rate",
            {
                "before": EngineCounters(prefix_cache_queries=0, prefix_cache_hits=0),
                "after": EngineCounters(prefix_cache_queries=100, prefix_cache_hits=50),
            },
        ),
    ],
)
def test_a_disturbed_load_voids_its_block_and_another_one_is_measured(
    kind: str, changes: dict[str, Any]
) -> None:
    rule = RATIO.model_copy(update={"hit_rate": 0.0})
    loads = blocks([1.1] * 5) + block(5, 1.1, **changes)
    found = rule.evaluate(loads)
    assert (found.state, found.n, found.lost) == ("open", 4, 1)
    assert {(each.kind, each.block) for each in found.voided} == {(kind, 5)}
    assert rule.needs_more(loads)
    more = loads + [load for number in range(6, 16) for load in block(number, 1.1)]
    assert rule.state(more) == "pass"


def test_a_void_block_counts_for_neither_side() -> None:
    """Five blocks pass; with a void one among them more are needed, wherever it is."""
    assert RATIO.state(blocks([1.1] * 7)) == "pass"
    for place in range(2, 7):
        loads = [
            load
            for number in range(7)
            for load in block(number, 1.1, **(THROTTLED if number == place else {}))
        ]
        assert RATIO.state(loads) == "open"
        slower = [
            load
            for number in range(7)
            for load in block(number, 0.9, **(THROTTLED if number == place else {}))
        ]
        assert RATIO.state(slower) == "open"


def test_a_void_block_of_the_warm_up_costs_nothing() -> None:
    loads = block(0, 1.1, **THROTTLED) + [load for n in range(1, 7) for load in block(n, 1.1)]
    assert (RATIO.state(loads), RATIO.evaluate(loads).lost) == ("pass", 0)


class TestTheClientsLag:
    """A ratio's lag is bounded, and the block's value includes the bound."""

    def late(self, ratio: float, lag_s: float, number: int = 7) -> list[LoadRun]:
        return [
            load.model_copy(update={"client_lag_s": lag_s})
            for each in range(number)
            for load in block(each, ratio)
        ]

    def test_it_does_not_stop_a_ratio_far_from_its_minimum(self) -> None:
        """As measured by `make demo`: late by a quarter of an answer."""
        rule = RATIO.model_copy(update={"min_ratio": 0.02})
        assert rule.state(self.late(0.5, 0.25)) == "pass"
        assert rule.state(self.late(0.001, 0.25)) == "fail"

    def test_a_block_that_it_could_turn_counts_for_neither_side(self) -> None:
        for ratio in (1.05, 0.95):
            assert RATIO.state(self.late(ratio, 0.001)) in ("pass", "fail")
            loads = self.late(ratio, 0.1)
            found = RATIO.evaluate(loads)
            assert (found.state, found.lost) == ("open", 5)
            assert {each.kind for each in found.voided} == {"client_lag"}
            assert RATIO.needs_more(loads)

    def test_each_side_is_taken_at_its_worst(self) -> None:
        """A pass: the baseline as fast as it could be. A fail: the candidate."""
        for side, ratio, state in (
            ("baseline", 1.1, "open"),
            ("candidate", 1.1, "pass"),
            ("candidate", 0.9, "open"),
            ("baseline", 0.9, "fail"),
        ):
            loads = [
                load.model_copy(update={"client_lag_s": 0.08 if load.side == side else 0.0})
                for load in blocks([ratio] * 7)
            ]
            assert RATIO.state(loads) == state

    def test_rare_long_delays_count_once(self) -> None:
        """As measured by `make demo` next to ten busy threads."""
        rule = RATIO.model_copy(update={"min_ratio": 0.02})
        loads = self.late(0.4, 0.5)
        assert rule.evaluate(loads).lost == 5
        known = [load.model_copy(update={"client_late_s": 5.0}) for load in loads]
        assert (rule.state(known), rule.evaluate(known).lost) == ("pass", 0)
        all_of_it = [load.model_copy(update={"client_late_s": load.seconds}) for load in loads]
        assert rule.evaluate(all_of_it).lost == 5

    def test_without_a_bound_it_counts_for_neither_side(self) -> None:
        assert RATIO.evaluate(self.late(3.0, 2.0)).lost == 5
        unknown = [load.model_copy(update={"client_lag_s": None}) for load in blocks([3.0] * 7)]
        assert RATIO.evaluate(unknown).lost == 5

    def test_of_limits_it_voids_the_round(self) -> None:
        rounds = [round_of(number, client_lag_s=0.1) for number in range(7)]
        found = LIMITS.evaluate(rounds)
        assert (found.state, found.lost) == ("open", 5)


class TestTheBudget:
    def all_void(self, number: int) -> list[LoadRun]:
        return [load for n in range(number) for load in block(n, 1.1, **THROTTLED)]

    def test_is_so_many_units_again_in_each_run(self) -> None:
        for budgets in (1, 2):
            rule = RATIO.model_copy(update={"blocks": 5, "began": [0, *range(99, 98 + budgets)]})
            most = 2 + 2 * 5 * budgets
            assert rule.needs_more(self.all_void(most - 1))
            found = rule.evaluate(self.all_void(most))
            assert (found.state, found.invalid_reasons[0].kind) == ("disturbed", "throttled")
            assert not rule.needs_more(self.all_void(most))

    def test_is_a_time_as_well(self) -> None:
        long = {"seconds": LOST_SECONDS / 4}
        hours = [load.model_copy(update=long) for load in self.all_void(3)]
        assert RATIO.evaluate(hours).state == "disturbed"

    def test_a_few_lost_units_are_made_up_for(self) -> None:
        """At the cap with two lost ones there are eight more, and then it is just undecided."""
        ratios = [1.1, 0.9] * 40
        loads = [
            load
            for number, ratio in enumerate(ratios)
            for load in block(number, ratio, **(THROTTLED if number in (4, 9) else {}))
        ]
        assert RATIO.needs_more(loads[: 2 * (2 + 27)])
        found = RATIO.evaluate(loads[: 2 * (2 + 28)])
        assert (found.state, found.n, found.most) == ("open", 28, 28)
        assert not RATIO.needs_more(loads[: 2 * (2 + 28)])

    def test_what_every_unit_has_from_the_start_is_no_disturbance(self) -> None:
        loads = [load for n in range(3) for load in block(n, 1.1, **failing())]
        assert RATIO.needs_more(loads[:4])
        found = RATIO.evaluate(loads)
        assert (found.state, found.invalid_reasons[0].kind) == ("disturbed", "failed_requests")
        again = RATIO.model_copy(update={"began": [0, 1]})
        assert again.needs_more(loads)


class TestARunThatContinues:
    def evaluate_margins(self, calm: int, began: tuple[int, ...] = (0, 1)) -> SpeedTestResult:
        """Forty disturbed blocks, then so many that are not, with two of warm-up."""

        def block_of(number: int) -> list[LoadRun]:
            loads = block(number, 1.1, **(THROTTLED if number < 42 else {}))
            return [each.model_copy(update={"server_run": int(number >= 42)}) for each in loads]

        loads = [load for number in range(44 + calm) for load in block_of(number)]
        return RATIO.model_copy(update={"began": list(began)}).evaluate(loads)

    def test_has_a_chance_whatever_was_disturbed_before(self) -> None:
        assert self.evaluate_margins(0, (0,)).state == "disturbed"
        assert [self.evaluate_margins(calm).state for calm in (10, 12)] == ["open", "pass"]
        assert self.evaluate_margins(12).lower is not None

    def test_ends_no_life_too_soon(self) -> None:
        assert self.evaluate_margins(12).n == 40 + 12
        assert self.evaluate_margins(12, (0,)).n == 40 + 12 + 1


def passes(
    chance: np.random.Generator, void: float, of_bad: float, rule: ThroughputRatioRule
) -> bool:
    """Whether a candidate at the boundary passes.

    Args:
        void: chance that a block above the minimum is void.
        of_bad: the same of one below it.
    """
    units = 2 + 2 * rule.blocks
    margins = chance.normal(0, 0.03, units)
    lost = chance.random(units) < np.where(margins < 0, of_bad, void)
    counts = np.arange(1, units - 1)
    most = rule.blocks + np.minimum(rule.blocks, 4 * lost[2:].cumsum())
    last = int(np.argmax(counts >= most))
    seen = np.where(lost, np.nan, margins)[: 2 + int(counts[last])]
    return rule.evaluate_margins(seen).state == "pass"


@pytest.mark.parametrize(("void", "of_bad"), [(0.0, 0.3), (0.0, 0.9), (0.2, 0.5), (0.3, 0.0)])
def test_faults_that_hit_slow_candidate_blocks_give_no_further_chance(
    void: float, of_bad: float
) -> None:
    """At most 5 % pass, give or take two standard errors; left out they would be up to 100 %."""
    chance = np.random.default_rng(20261123)
    passed = sum(passes(chance, void, of_bad, RATIO) for _ in range(400))
    assert passed / 400 <= 0.072


def test_the_docs_have_the_same_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "performance-gates.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `")]
    shown = {each[0].strip(" `"): (each[1].strip(), each[2].strip()) for each in rows}
    for kind, handling in HANDLING.items():
        assert shown[kind] == (handling.ratio, handling.limits)

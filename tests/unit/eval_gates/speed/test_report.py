"""Speed gates as gates: what is written down, and what a variant's verdict makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from measured_loads import blocks, load_in_waves, round_of
from sample_reports import gate_report
from some_attempt import some_trial

from artifacts.ci.case import speed_case
from artifacts.gate_row import speed_row
from eval_gates.gate_report import Tier
from eval_gates.speed.gate_rule import build_rule
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.report import SpeedGateReport, decide_speed_gate
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from eval_gates.verdicts import overall
from pipeline.stages.judge import JudgeParameters
from pipeline.stages.judge.verdict import speed_of
from pipeline.stages.speed import ROLE
from recipes.catalog import load_profile
from recipes.policy import Policy

SPEED: dict[str, Any] = {
    "ratio": {"min_ratio": {"cpu": 1.0}, "workloads": ["chat"]},
    "slo": [{"workload": "chat", "rate": 4, "limits": {"ttft_ms_p95": 800}}],
}

RATIO = ThroughputRatioRule(min_ratio=1.0, alpha=0.05, blocks=20)


def policy(speed: dict[str, Any] | None = SPEED) -> Policy:
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mmlu": {"kind": "mmlu", "margins": {"fp8": 0.01}}},
            "speed": speed,
        }
    )


def judged(loads: dict[str, list[LoadRun]], **rule: Any) -> list[SpeedGateReport]:
    """By the policy, of what was measured of each of its claims."""
    return [
        decide_speed_gate(
            claim.name,
            build_rule(claim, 0.045, "cpu").model_copy(
                update=rule if claim.kind == "ratio" else {}
            ),
            workload=claim.workload,
            tier=claim.tier,
            loads=loads.get(ROLE + claim.name, []),
            at=claim.at,
            note=load_profile("cpu").speed_note,
        )
        for claim in policy().claims_on("cpu")
    ]


def of_ratio(*ratios: float, tier: Tier = "critical") -> SpeedGateReport:
    return decide_speed_gate(
        "ratio.chat", RATIO, workload="chat", tier=tier, loads=blocks(list(ratios))
    )


def test_each_claim_is_judged_by_the_verdicts_rules() -> None:
    rounds = [round_of(i) for i in range(18)]
    loads = {"speed.ratio.chat": blocks([1.1] * 12), "speed.slo.0": rounds}
    ratio, slo = judged(loads)
    assert (ratio.gate, ratio.verdict, ratio.alpha, ratio.threshold) == (
        "ratio.chat",
        "pass",
        pytest.approx(0.045),
        1.0,
    )
    assert (slo.gate, slo.verdict, slo.n, slo.unit) == ("slo.0", "pass", 16, "rounds")
    assert "4 requests/s" in slo.description
    assert SpeedGateReport.model_validate_json(ratio.model_dump_json()) == ratio


def test_what_was_not_measured_is_undecided() -> None:
    assert {each.verdict for each in judged({})} == {"undecided"}
    asked = JudgeParameters(policy=policy(None), trial=some_trial(), family="fp8")
    assert speed_of(asked, set(), None, None) == []  # type: ignore[arg-type]


def test_an_allowance_for_lives_is_taken_from_the_rule() -> None:
    loads = {"speed.ratio.chat": blocks([1.03] * 12)}
    assert judged(loads)[0].verdict == "pass"
    allowed = judged(loads, restart_allowance=0.05, restart_allowance_alpha=0.025)[0]
    assert (allowed.verdict, allowed.restart_allowance) == ("undecided", 0.05)


def test_of_lives_that_alternate_a_pair_is_what_is_judged() -> None:
    loads = {"speed.ratio.chat": blocks([1.1] * 12)}
    report = judged(loads, server_mode="interleaved", loads_per_server_run=2)[0]
    assert (report.server_mode, report.unit, report.n) == ("interleaved", "pairs of server runs", 6)
    assert "pair of server runs" in report.description
    assert judged(loads)[0].server_mode == "concurrent"


def test_what_cannot_be_trusted_is_undecided_and_says_why() -> None:
    loads = blocks([1.1] * 8)
    loads[3] = loads[3].model_copy(update={"prompts_sha256": "f" * 64})
    report = decide_speed_gate("ratio.chat", RATIO, workload="chat", tier="critical", loads=loads)
    assert report.verdict == "undecided"
    assert [(each.kind, each.block) for each in report.invalid_reasons] == [("unlike", 1)]
    assert len(report.loads) == 16
    with pytest.raises(ValueError, match="other"):
        decide_speed_gate("ratio.chat", RATIO, workload="other", tier="critical", loads=loads)


def test_a_disturbed_measurement_says_what_was_seen_and_that_it_continues() -> None:
    seen = {"client_lag_s": 1.0, "runnable": 6.2, "cpus": 2}
    loads = [load.model_copy(update=seen) for load in blocks([1.1] * 12)]
    rule = RATIO.model_copy(update={"blocks": 5})
    report = decide_speed_gate("ratio.chat", rule, workload="chat", tier="critical", loads=loads)
    assert (report.verdict, report.continues, report.lost) == ("undecided", True, 10)
    for told in ("10 of 10 blocks", "1000 ms", "6.2 threads", "2 CPUs", "same command"):
        assert told in report.reason


def test_a_gate_that_only_finds_broken_servers_says_so() -> None:
    for minimum, is_told in ((0.02, True), (0.8, False)):
        rule = RATIO.model_copy(update={"min_ratio": minimum})
        report = decide_speed_gate("ratio.chat", rule, workload="chat", tier="critical", loads=[])
        assert ("not broken" in report.description) == is_told


def test_points_describe_each_load() -> None:
    report = of_ratio(1.1, 1.1)
    assert [(p.side, p.block, p.order) for p in report.loads[:2]] == [
        ("baseline", 0, 0),
        ("candidate", 0, 1),
    ]
    assert report.loads[0].output_tokens_per_s == pytest.approx(40)
    assert report.loads[1].output_tokens_per_s == pytest.approx(44)
    assert report.loads[0].ttft_ms_p50 == pytest.approx(100)


@pytest.mark.parametrize(
    ("ratio", "tier", "verdict"),
    [
        (1.1, "critical", "pass"),
        (0.9, "critical", "fail"),
        (0.9, "supporting", "fail"),
        (0.9, "advisory", "pass"),
    ],
)
def test_a_variant_must_be_fast_enough(ratio: float, tier: Tier, verdict: str) -> None:
    found = overall([gate_report(p_value=0.001)], [of_ratio(*[ratio] * 12, tier=tier)])
    assert found[0] == verdict


def test_an_undecided_claim_blocks_where_it_is_critical() -> None:
    gates = [gate_report(p_value=0.001)]
    assert overall(gates, [of_ratio(*[1.1] * 6, 1.0)])[0] == "undecided"
    assert overall(gates, [of_ratio(*[1.1] * 6, 1.0, tier="supporting")])[0] == "pass"


def test_a_variants_p_value_counts_that_of_speed() -> None:
    """The largest of the critical gates'; speed alone shows nothing."""
    fast = of_ratio(*[1.1] * 12)
    assert overall([gate_report(p_value=0.001)], [fast])[2] == fast.p_value > 0.001
    assert overall([gate_report(p_value=0.001, tier="supporting")], [fast])[2] == 1.0
    slow = of_ratio(*[0.9] * 12, tier="advisory")
    assert overall([gate_report(p_value=0.001)], [slow])[2] == 0.001


def test_a_row_has_the_ratio_with_its_bound() -> None:
    report = of_ratio(*[1.1] * 12)
    row = dataclasses.asdict(speed_row(report, 1))
    assert row["what"] == "speed ratio.chat"
    assert (row["baseline"], row["candidate"]) == ("40", "44")
    assert row["difference"] == "x 1.10"
    assert row["bound"].startswith("x 1.")
    assert row["verdict"] == "pass"
    assert speed_row(of_ratio(*[1.1] * 3), 1).bound == ""
    case = speed_case("v", report)
    assert (case.name, case.outcome, case.blocks) == ("speed ratio.chat", "pass", False)
    assert case.facts["measured"] == str(report.estimate)


def test_a_row_of_limits_has_the_rounds() -> None:
    (_, slo) = judged({"speed.slo.0": [round_of(i) for i in range(8)]})
    row = speed_row(slo, 1)
    assert (row.candidate, row.unit, row.difference, row.margin) == (
        "6 of 6",
        " rounds",
        "100 %",
        "at least 80 %",
    )


def test_a_closed_loop_may_have_limits() -> None:
    rule = SloRule(limits={"latency_ms_p95": 2000}, slo_attainment=0.5, alpha=0.05, rounds=30)
    loads = [load_in_waves(block=i, seed=i) for i in range(12)]
    report = decide_speed_gate("slo.0", rule, workload="chat", tier="critical", loads=loads)
    assert report.verdict == "pass"
    assert [point.met_slo for point in report.loads] == [None] * 2 + [True] * 10


def test_a_pass_is_withheld_where_all_tokens_over_all_time_are_too_few() -> None:
    """Nine of ten blocks are faster, one loses nine tenths."""
    ratios = [*[1.02] * 8, 0.1, *[1.02] * 7]
    report = of_ratio(*ratios)
    assert (report.verdict, report.p_value, report.decided_at) == ("undecided", 1.0, None)
    assert report.lower == pytest.approx(1.02, abs=0.004)
    assert report.total is not None
    assert report.total < 0.7
    assert overall([gate_report(p_value=0.001)], [report])[0] == "undecided"
    assert of_ratio(*[1.02] * 16).total == pytest.approx(1.02, abs=0.01)
    # What is slow in the warm-up alone counts for nothing.
    assert of_ratio(0.1, *[1.02] * 15).verdict == "pass"


def test_a_pass_states_that_the_rate_is_sustained() -> None:
    (_, slo) = judged({"speed.slo.0": [round_of(i) for i in range(18)]})
    assert (slo.verdict, slo.starts) == ("pass", "one")
    assert slo.left_over == pytest.approx(0, abs=0.03)
    assert slo.requests_within == {"ttft_ms_p95": 1.0}


def test_a_rate_that_is_not_sustained_passes_nothing() -> None:
    """Each round keeps the limit, and one of twenty requests is left over in each."""
    requests = round_of(0).requests.model_dump()
    requests["end_s"] = [start + 0.4 + 0.05 * i for i, start in enumerate(requests["start_s"])]
    loads = [round_of(i, requests=requests) for i in range(18)]
    rule = SloRule(limits={"ttft_ms_p95": 60_000}, slo_attainment=0.5, alpha=0.05, rounds=30)
    report = decide_speed_gate("slo.0", rule, workload="chat", tier="critical", loads=loads)
    assert report.verdict == "undecided"
    assert report.left_over == pytest.approx(0.05)
    assert report.lower is not None
    assert report.lower > 0.5


def test_the_share_of_all_requests_within_a_limit_stands_beside() -> None:
    requests = round_of(0).requests.model_dump()
    requests["ttft_s"][10] = 0.9  # one of twenty that count
    rounds = [round_of(i, requests=requests) for i in range(18)]
    (_, slo) = judged({"speed.slo.0": rounds})
    assert slo.requests_within == {"ttft_ms_p95": pytest.approx(0.95)}

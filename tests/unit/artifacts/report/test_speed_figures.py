"""Speed gates in the report."""

from __future__ import annotations

from fake_run import FakeRun
from measured_loads import blocks, round_of

from artifacts.report.figure import UniqueIds
from artifacts.report.page import run_page
from artifacts.report.run_evidence import RunEvidence
from artifacts.report.speed import speed_figures
from eval_gates.speed.report import decide_speed_gate
from eval_gates.speed.rules import LimitRule, RatioRule


def with_claims(made: FakeRun) -> RunEvidence:
    """The first variant has a ratio, limits, and a claim that was not measured."""
    ratio = RatioRule(min_ratio=1.0, alpha=0.05, blocks=8)
    slo = LimitRule(limits={"ttft_ms_p95": 800}, alpha=0.05, blocks=8)
    rounds = [round_of(i, ttft_s=1.0 if i == 2 else 0.1) for i in range(8)]
    claims = [
        decide_speed_gate(f"{rule.kind}.0", rule, workload="chat", tier="critical", loads=loads)
        for rule, loads in (
            (ratio, blocks([1.1] * 8)),
            (slo, rounds),
            (slo, []),
        )
    ]
    first, *others = made.report.variants
    report = made.save(variants=[first.model_copy(update={"speed": claims}), *others])
    return RunEvidence(report, made.store)


def test_loads_of_each_claim_that_was_measured(made: FakeRun) -> None:
    ratio, limits, *_ = speed_figures(with_claims(made), UniqueIds())
    assert [trace["name"] for trace in ratio.data] == ["baseline", "candidate"]
    assert len(ratio.table.rows) == 16
    assert [trace["name"] for trace in limits.data] == [
        "candidate, within limits",
        "candidate, beyond a limit",
    ]
    assert [row[-1] for row in limits.table.rows] == ["yes"] * 2 + ["no"] + ["yes"] * 5


def test_the_page_has_the_claims_or_says_that_there_are_none(made: FakeRun) -> None:
    title = "Speed gates</h2>"
    page = run_page(with_claims(made))
    assert title in page
    assert "speed ratio.0" in page
    assert "speed slo.0" in page
    bare = [each.model_copy(update={"speed": []}) for each in made.report.variants]
    page = run_page(RunEvidence(made.save(variants=bare), made.store))
    assert "The policy claims nothing of speed" in page

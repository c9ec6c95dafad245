"""Speed gates as gates: what is written down, and what a variant's verdict makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from measured_loads import blocks, round_of
from some_attempt import some_trial

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.report import SpeedGateResult, judge_speed
from eval_gates.speed.rules import SpeedRule, build_rule
from pipeline.stages import speed_role
from pipeline.stages.judge import speed_gates
from pipeline.stages.verdict import JudgeParameters
from recipes.catalog import load_profile
from recipes.policy import Policy

SPEED: dict[str, Any] = {
    "ratio": {"min_ratio": {"cpu": 1.0}, "workloads": ["chat"]},
    "slo": [{"workload": "chat", "rate": 4, "limits": {"ttft_ms_p95": 800}}],
}

RATIO = SpeedRule(kind="ratio", min_ratio=1.0, alpha=0.05, blocks=5)
FASTER = [1.1, 1.12, 1.08, 1.1, 1.1, 1.1, 1.1]


def policy(speed: dict[str, Any] | None = SPEED) -> Policy:
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mmlu": {"kind": "mmlu", "margins": {"fp8": 0.01}}},
            "speed": speed,
        }
    )


def judged(loads: dict[str, list[LoadRun]], **rule: Any) -> list[SpeedGateResult]:
    return [
        judge_speed(
            speed_gate.name,
            build_rule(speed_gate, 0.045, "cpu").model_copy(
                update=rule if speed_gate.kind == "ratio" else {}
            ),
            workload=speed_gate.workload,
            tier=speed_gate.tier,
            loads=loads.get(speed_role(speed_gate.name), []),
            at=speed_gate.at,
            note=load_profile("cpu").speed_note,
        )
        for speed_gate in policy().gates_on("cpu")
    ]


def test_a_limit_is_no_ratio() -> None:
    rules = {each.kind: build_rule(each, 0.05, "cpu") for each in policy().gates_on("cpu")}
    assert (rules["slo"].min_ratio, rules["slo"].blocks) == (1.0, 6)


def of_ratio(loads: list[LoadRun], rule: SpeedRule = RATIO) -> SpeedGateResult:
    return judge_speed("ratio.chat", rule, workload="chat", tier="critical", loads=loads)


def test_each_claim_is_judged_by_the_verdicts_rules() -> None:
    loads = {"speed.ratio.chat": blocks(FASTER), "speed.slo.0": [round_of(i) for i in range(6)]}
    ratio, slo = judged(loads)
    assert (ratio.gate, ratio.verdict, ratio.alpha, ratio.threshold) == (
        "ratio.chat",
        "pass",
        pytest.approx(0.045),
        1.0,
    )
    assert (slo.gate, slo.verdict, slo.n) == ("slo.0", "pass", 6)
    assert "chat at 4 requests/s: at most ttft_ms_p95 800" in slo.description
    assert "at least 1 of the baseline's" in ratio.description
    assert (slo.candidate, slo.unit) == (6.0, "of 6 within limits")
    assert (ratio.concurrency, slo.concurrency) == (4, None)
    assert SpeedGateResult.model_validate_json(ratio.model_dump_json()) == ratio


def test_what_was_not_measured_is_undecided() -> None:
    assert {each.verdict for each in judged({})} == {"undecided"}
    asked = JudgeParameters(policy=policy(None), trial=some_trial(), family="fp8")
    assert list(speed_gates(asked, None)) == []  # type: ignore[arg-type]


def test_a_verdict_says_what_starts_it_is_about() -> None:
    loads = {"speed.ratio.chat": blocks(FASTER)}
    for starts, told in (("once", True), ("fresh", False)):
        report = judged(loads, starts=starts)[0]
        assert report.starts == starts
        for words in (report.description, report.reason, report.counted):
            assert ("of these starts" in words) == told


def test_what_cannot_be_trusted_is_undecided_and_says_why() -> None:
    loads = blocks(FASTER)
    loads[3] = loads[3].model_copy(update={"prompts_sha256": "f" * 64})
    report = of_ratio(loads)
    assert report.verdict == "undecided"
    assert [(each.kind, each.block) for each in report.faults] == [("unlike", 1)]
    assert len(report.loads) == 14
    with pytest.raises(ValueError, match="other"):
        judge_speed("ratio.chat", RATIO, workload="other", tier="critical", loads=loads)
    with pytest.raises(ValueError, match="each side"):
        judged({"speed.ratio.chat": [*loads[:2], loads[2], loads[2]]})


def test_a_disturbed_measurement_says_what_was_seen() -> None:
    seen = {"client_lag_s": 1.0, "client_late_s": 9.0, "runnable": 6.2, "cpus": 2}
    loads = [load.model_copy(update=seen) for load in blocks([1.1] * 10)]
    report = of_ratio(loads)
    assert (report.verdict, report.n, report.repeats) == ("undecided", 0, {"disturbed": 10})
    for told in ("disturbed 10", "1000 ms", "6.2 threads", "2 CPUs", "`--remeasure ratio.chat`"):
        assert told in report.reason


def test_a_result_of_limits_has_the_loads_within() -> None:
    loads = [round_of(i, ttft_s=0.1 if i else 0.9) for i in range(6)]
    (_, slo) = judged({"speed.slo.0": loads})
    assert slo.show_sides() == ("", "5 of 6 within limits")
    assert "1 of 6 loads beyond a limit" in slo.reason
    assert [point.within for point in slo.loads] == [False] + [True] * 5

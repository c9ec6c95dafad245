"""From gates to a variant's verdict: tiers, the p-value, and that nothing is no pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_reports import gate_report, speed_gate_report

from eval_gates.gate_result import Verdict
from eval_gates.quality_result import QualityResult
from eval_gates.speed.report import SpeedGateResult
from pipeline.stages.verdict import judge_variant
from recipes.config_model import Tier

LOST = "{} (-0.1 points; at most 1 may be lost)"


def gate(
    suite: str, verdict: Verdict, tier: Tier = "critical", p_value: float = 0.01
) -> QualityResult:
    return gate_report(name=suite, verdict=verdict, tier=tier, p_value=p_value)


def fast(verdict: Verdict, tier: Tier = "critical", p_value: float = 0.01) -> list[SpeedGateResult]:
    return [speed_gate_report(verdict=verdict, tier=tier, p_value=p_value)]


class TestVariant:
    @pytest.mark.parametrize(
        ("mmlu", "rouge", "tier", "words"),
        [
            ("pass", "pass", "critical", "all 3 gates passed"),
            (
                "fail",
                "undecided",
                "critical",
                "failed on mmlu (-0.1 points; at most 1 may be lost)",
            ),
            (
                "fail",
                "fail",
                "critical",
                f"failed on {LOST.format('mmlu')}, {LOST.format('rouge')}",
            ),
            ("pass", "undecided", "critical", "rouge could not be decided"),
            (
                "pass",
                "undecided",
                "supporting",
                f"passed on mmlu, speed ratio.chat; not shown on {LOST.format('rouge')}",
            ),
        ],
    )
    def test_the_reason_names_the_gates(
        self, mmlu: Verdict, rouge: Verdict, tier: Tier, words: str
    ) -> None:
        assert (
            judge_variant([gate("mmlu", mmlu), gate("rouge", rouge, tier), *fast("pass")])[1]
            == words
        )

    def test_the_p_value_is_the_largest_of_the_critical_gates(self) -> None:
        gates = [
            gate("mmlu", "pass", p_value=0.02),
            gate("rouge", "pass", p_value=0.03),
            gate("humaneval", "undecided", "supporting", 0.6),
            gate("bleu", "fail", "advisory", 1.0),
        ]
        assert judge_variant([*gates, *fast("pass")])[2] == 0.03
        assert judge_variant([*gates, *fast("pass", p_value=0.04)])[2] == 0.04
        assert judge_variant([*gates, *fast("fail", "advisory", p_value=0.04)])[2] == 0.03

    @pytest.mark.parametrize(
        ("verdict", "tier"),
        [("undecided", "supporting"), ("undecided", "advisory"), ("fail", "advisory")],
    )
    def test_a_pass_says_what_was_lost_beside_it(self, verdict: Verdict, tier: Tier) -> None:
        humaneval = gate_report(
            name="humaneval", verdict=verdict, tier=tier, estimate=-0.3125, threshold=-0.25
        )
        result, reason, _ = judge_variant([gate("quiz", "pass"), humaneval])
        assert result == "pass"
        assert "passed on quiz;" in reason
        assert "humaneval (-31.2 points; at most 25 may be lost)" in reason

    def test_an_undecided_supporting_gate_holds_if_the_policy_says_so(self) -> None:
        held = gate("rouge", "undecided", "supporting").model_copy(update={"holds": True})
        assert judge_variant([gate("mmlu", "pass"), held])[0] == "undecided"
        passed = gate("rouge", "pass", "supporting").model_copy(update={"holds": True})
        assert judge_variant([gate("mmlu", "pass"), passed])[0] == "pass"

    def test_nothing_critical_shows_nothing(self) -> None:
        assert judge_variant([gate("mmlu", "pass", "supporting", 0.001), *fast("pass")])[2] == 1.0

    @pytest.mark.parametrize("speed", [[], fast("pass")])
    def test_no_gate_is_no_pass(self, speed: list[SpeedGateResult]) -> None:
        with pytest.raises(ValueError, match="gate"):
            judge_variant(speed)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["pass", "fail", "undecided"]),
                st.sampled_from(["critical", "supporting", "advisory"]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_laws(self, facts: list[tuple[Verdict, Tier]]) -> None:
        gates = [gate(f"suite-{n}", *fact) for n, fact in enumerate(facts)]
        verdict, reason, _ = judge_variant(gates)
        assert any(each.blocks for each in gates) == (verdict != "pass")
        speed = [speed_gate for fact in facts for speed_gate in fast(*fact)]
        assert judge_variant([gate("mmlu", "pass"), *speed])[0] == verdict
        blocks = ("fail", "critical") in facts or ("fail", "supporting") in facts
        opens = ("undecided", "critical") in facts
        assert verdict == ("fail" if blocks else "undecided" if opens else "pass")
        for name, (each, tier) in enumerate(facts):
            if each == "fail" and tier != "advisory":
                assert f"suite-{name}" in reason

"""Which cases a CI report has, and what they say about what is in the way."""

from __future__ import annotations

import itertools

import pytest
from ci_reports import (
    incoherent,
    not_among_several,
    not_needed,
    refused,
    saying_no,
    slow,
    undecided,
)
from sample_reports import (
    failed_variant_report,
    gate_report,
    speed_claim,
    variant_report,
)

from artifacts.ci.case import Case, cases_of, cases_of_run
from eval_gates.verdicts import blocks, overall


def short(cases: list[Case]) -> list[tuple[str, str, bool]]:
    return [(case.name, case.outcome, case.blocks) for case in cases]


def test_a_case_a_gate_and_one_for_a_claim_on_speed() -> None:
    assert short(cases_of(variant_report())) == [
        ("mmlu", "pass", False),
        ("speed ratio.chat", "pass", False),
    ]
    assert short(cases_of(saying_no())) == [
        ("mmlu", "fail", True),
        ("code", "undecided", True),
        ("rouge", "fail", False),
        ("speed ratio.chat", "pass", False),
    ]
    assert short(cases_of(undecided()))[:2] == [
        ("mmlu", "undecided", True),
        ("code", "undecided", False),
    ]
    assert short(cases_of(slow()))[-1] == ("speed ratio.chat", "fail", True)


def test_what_no_gate_tells_has_a_case_of_its_own() -> None:
    assert short(cases_of(failed_variant_report())) == [("verdict", "error", True)]
    assert short(cases_of(incoherent())) == [("verdict", "fail", True)]
    assert short(cases_of(not_needed())) == [("verdict", "skipped", False)]
    assert short(cases_of(not_among_several())) == [
        ("verdict", "undecided", True),
        ("mmlu", "pass", False),
        ("speed ratio.chat", "pass", False),
    ]


@pytest.mark.parametrize(
    ("verdict", "tier"),
    list(itertools.product(("pass", "fail", "undecided"), ("critical", "supporting", "advisory"))),
)
def test_what_blocks_is_what_the_judge_lets_block(verdict: str, tier: str) -> None:
    # A critical gate that passed is next to it, for a p-value.
    gates = [gate_report(verdict=verdict, tier=tier), gate_report(suite="code")]
    assert blocks(verdict, tier) == (overall(gates)[0] != "pass")
    load = [speed_claim(verdict=verdict, tier=tier)]
    assert blocks(verdict, tier) == (overall(gates[1:], load)[0] != "pass")


def test_the_figures_are_exact_and_what_is_none_is_left_out() -> None:
    gate = gate_report(bound=-0.1 - 0.2, p_value=1e-300, recovery=None)
    facts = cases_of(variant_report(gates=[gate]))[0].facts
    assert float(facts["bound"]) == gate.bound
    assert float(facts["p_value"]) == 1e-300
    assert (facts["measured"], facts["n"], facts["margin"]) == ("0.6498", "3511", "1 point")
    assert "recovery" not in facts
    assert "nan" not in " ".join(facts.values())


def test_the_end_of_a_run_comes_before_its_variants() -> None:
    whole, *rest = cases_of_run(refused().model_copy(update={"variants": [variant_report()]}))
    assert (whole.variant, whole.outcome, whole.blocks) == ("prepare model", "error", True)
    assert whole.reason.startswith("there is no such folder\n  where: /models/none")
    assert [case.variant for case in rest] == ["fp8-dynamic"] * 2

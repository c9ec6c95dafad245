"""Holm over the variants of a run: who passes alone, and who still does among several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_reports import failed_variant_report, variant_report

from artifacts.run_record import VariantReport
from artifacts.selection import correct

ALPHA = 0.05


def variants(*p_values: float, alpha: float = ALPHA) -> list[VariantReport]:
    """Variants whose quality gates alone decide, as they do at `alpha`."""
    return [
        variant_report(
            recipe=f"recipe-{number}",
            p_value=p,
            verdict="pass" if p <= alpha else "undecided",
            reason="all 2 gates passed" if p <= alpha else "mmlu could not be decided",
            promoted=False,
            registry_version=None,
        )
        for number, p in enumerate(p_values)
    ]


def changed(reports: list[VariantReport], alpha: float = ALPHA) -> list[str]:
    return [report.recipe for report in correct(reports, alpha)]


def test_one_variant_needs_no_correction() -> None:
    assert correct(variants(ALPHA), ALPHA) == []
    assert correct([], ALPHA) == []


@pytest.mark.parametrize(
    ("p_values", "lost"),
    [
        ((0.025, 0.05), []),  # exactly on both of Holm's levels
        ((0.0251, 0.05), ["recipe-0", "recipe-1"]),
        ((0.04, 0.001), []),
        ((0.04, 0.03), ["recipe-0", "recipe-1"]),
        ((0.05 / 3, 0.025, 0.05), []),
        ((0.05, 0.025, 0.05 / 3), []),
        ((0.0167, 0.001, 0.04), []),
        ((0.03, 0.001, 0.04), ["recipe-0", "recipe-2"]),
        ((0.017, 0.018, 0.019), ["recipe-0", "recipe-1", "recipe-2"]),
        ((0.02, 0.9), []),
        ((0.03, 0.9), ["recipe-0"]),  # one that does not pass counts all the same
        ((0.02, 0.9, 0.9), ["recipe-0"]),
    ],
)
def test_by_example(p_values: tuple[float, ...], lost: list[str]) -> None:
    assert changed(variants(*p_values)) == lost


def test_a_variant_that_errored_counts_as_one() -> None:
    """It was tried; that it broke makes the others no surer."""
    broken = failed_variant_report()
    assert changed([*variants(0.02), broken]) == []
    assert changed([*variants(0.03), broken]) == ["recipe-0"]
    assert changed([broken, *variants(0.02, 0.001)]) == []
    assert changed([broken, *variants(0.03, 0.001)]) == ["recipe-0"]


def test_what_failed_stays_as_it_is() -> None:
    failed = variant_report(
        recipe="slow", verdict="fail", p_value=0.04, reason="speed ratio.chat failed"
    )
    assert changed([failed, *variants(0.04)]) == ["recipe-0"]
    assert changed([failed, *variants(0.02)]) == []


def test_the_report_says_why_and_keeps_the_rest() -> None:
    before = variants(0.0312, 0.9)
    (report,) = correct(before, ALPHA)

    assert report.verdict == "undecided"
    for words in ("passes alone", "2 variants", "p = 0.0312", "Holm", "0.05", "more q"):
        assert words in report.reason
    same = report.model_copy(update={"verdict": "pass", "reason": before[0].reason})
    assert same == before[0]


P_VALUES = st.lists(
    st.one_of(st.floats(0, 1), st.floats(0, 0.06), st.sampled_from([0.0, 0.05, 0.025, 0.0125])),
    min_size=2,
    max_size=5,
)


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.1]))
def test_it_is_holms_procedure(p_values: list[float], alpha: float) -> None:
    """Step down: the k-th smallest against alpha / (K - k + 1), until the first that is above."""
    lost = set(changed(variants(*p_values, alpha=alpha), alpha))
    kept = 0
    ordered = sorted(p_values)
    while kept < len(ordered) and (len(ordered) - kept) * ordered[kept] <= alpha:
        kept += 1
    expected = {
        f"recipe-{number}"
        for number, p in enumerate(p_values)
        if p <= alpha and (kept == 0 or p > ordered[kept - 1])
    }
    assert lost == expected


@given(P_VALUES)
def test_nobody_passes_who_did_not_pass_alone(p_values: list[float]) -> None:
    for report in correct(variants(*p_values), ALPHA):
        assert report.verdict == "undecided"
        assert report.p_value is not None
        assert ALPHA / len(p_values) < report.p_value <= ALPHA

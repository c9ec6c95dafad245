"""From verdicts on single variants to those that hold for all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.run_record import VariantReport
from eval_gates.statistics.multiplicity import holm
from pipeline.core.errors import ExitCode

# How a variant's reason continues where another one got the alias.
NOT_PREFERRED = "; registered, but "


def correct(reports: Sequence[VariantReport], alpha: float) -> list[VariantReport]:
    """The reports whose verdict changes because several variants are tried at once, by Holm.

    Each variant has its own chance `alpha` (the policy's, or the trial's share of it) to pass
    though it is worse than allowed; with several, the chance that one such passes adds up. Asking
    stops at the strictest of Holm's levels, so a variant that passes alone and not together is one
    whose questions or time had run out. One without a p-value cannot pass and counts as one.
    """
    rejected = holm({r.recipe: r.p_value if r.p_value is not None else 1.0 for r in reports}, alpha)
    return [
        report.model_copy(
            update={
                "verdict": "undecided",
                "reason": f"passes alone, but not {_describe_tried(report, len(reports))} "
                f"(p = {report.p_value:.3g}; Holm's correction of {alpha:.3g}): needs more "
                "questions",
            }
        )
        for report in reports
        if report.verdict == "pass" and not rejected[report.recipe]
    ]


def _describe_tried(report: VariantReport, tried: int) -> str:
    """With what it was tried, in words."""
    together = f"with {tried} variants tried" if tried > 1 else "at this trial's share"
    return together if report.trial in (None, 1) else f"{together}, in trial {report.trial}"


def first_of_the_ladder(passed: list[VariantReport], rungs: tuple[str, ...]) -> list[VariantReport]:
    """Without the rungs that pass after the first that does.

    A rung is tried because none before it passed; with its p-value beside theirs, Holm's
    correction can turn one of those into a pass after all, and then that one goes first.
    """
    names = {report.recipe for report in passed}
    later = [rung for rung in rungs if rung in names][1:]
    return [report for report in passed if report.recipe not in later]


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """How a run ends by its variants' verdicts, with nothing left to do."""
    if "pass" in verdicts:
        return ExitCode.PROMOTED
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

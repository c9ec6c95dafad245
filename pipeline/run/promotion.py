"""Promotes what passed, at the end of `prepare model`."""

from __future__ import annotations

from datetime import datetime

from artifacts.evidence.signing import Signer
from artifacts.multiple_testing import NOT_PREFERRED, exit_code_of
from artifacts.release import PromotionRequest, promote
from pipeline.core.errors import ExitCode
from pipeline.core.events import Progress
from pipeline.core.store import Store
from pipeline.plan.plan import Plan
from pipeline.run.recorder import RunRecorder


def promote_passed(
    plan: Plan,
    log: RunRecorder,
    store: Store,
    progress: Progress,
    *,
    name: str,
    registry: str,
    signer: Signer | None,
) -> ExitCode:
    """Promote if a variant passed; return the run's exit code. Errors: as `promote`."""
    run = log.report()
    # In the plan's order: which verdict came first is chance.
    order = [variant.recipe.name for variant in plan.variants]
    passed = sorted(
        (report for report in run.variants if report.verdict == "pass"),
        key=lambda report: order.index(report.recipe),
    )
    if not passed:
        return exit_code_of([report.verdict for report in run.variants])
    # A champion that was set during the measurement may not be meant to be replaced.
    request = PromotionRequest(
        registry, name=name, since=datetime.fromisoformat(run.started), signer=signer
    )
    promoted = promote(run, passed, store, request, progress)
    for report in passed:
        is_champion = report.recipe == promoted.champion
        reason = (
            f"{report.reason}{NOT_PREFERRED}{promoted.champion} was preferred for the alias "
            f"({plan.policy.promotion.prefer})"
        )
        changes = {
            "promoted": is_champion,
            "registry_version": promoted.versions[report.recipe],
            "reason": report.reason if is_champion else reason,
        }
        log.note_variant(report.model_copy(update=changes))
    return ExitCode.SUCCESS

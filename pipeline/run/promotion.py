"""Promotes what passed, at the end of `prepare model`: registers variants and moves the alias."""

from __future__ import annotations

from datetime import UTC, datetime

from artifacts.multiple_testing import NOT_PREFERRED, exit_code_of
from artifacts.run_record import RunReport
from pipeline.core.errors import ExitCode
from pipeline.plan.plan import Plan
from pipeline.release.evidence_stage import evidence_stage
from pipeline.release.promotion_stage import PromotionRequest, promotion_stage
from pipeline.release.signer import Signer
from pipeline.release.stages.promote import PROMOTE
from pipeline.run.run_recorder import RunRecorder
from pipeline.run.stage_runner import SubmittedStageRunner
from pipeline.stages.context import execute


class Promotion:
    """Promotes the variants of one judged plan."""

    def __init__(
        self,
        plan: Plan,
        stages: SubmittedStageRunner,
        log: RunRecorder,
        signer: Signer | None = None,
    ) -> None:
        self._plan = plan
        self._signer = signer
        self._stages = stages
        self._log = log

    def run(self, name: str, registry: str) -> ExitCode:
        """Promote if a variant passed; return the run's exit code.

        Raises:
            RegistryError: the registry refused or cannot be reached, the champion moved since the
                run began, or the variant was rolled back.
        """
        run = self._log.report()
        # In the plan's order: which verdict came first is chance, and would change the stage's key.
        order = [variant.recipe.name for variant in self._plan.variants]
        passed = sorted(
            (report for report in run.variants if report.verdict == "pass"),
            key=lambda report: order.index(report.recipe),
        )
        if not passed:
            return exit_code_of([report.verdict for report in run.variants])
        for report in passed:
            evidence = evidence_stage(
                run, report.recipe, self._stages.store, name=name, signer=self._signer
            )
            if self._signer is not None:
                execute(evidence, self._stages.progress)  # the key stays in this process
            self._stages.run(evidence)
        spec = promotion_stage(
            run,
            passed,
            PromotionRequest(registry, name=name, signer=self._signer),
            self._stages.store,
            # A champion that was set during the measurement may not be meant to be replaced.
            since=start_of(run),
        )
        promoted = PROMOTE.result_of(self._stages.run(spec))
        for report in passed:
            champion = promoted.champion
            is_champion = report.recipe == champion
            self._log.note_variant(
                report.model_copy(
                    update={
                        "promoted": is_champion,
                        "registry_version": promoted.versions[report.recipe],
                        "reason": report.reason
                        if is_champion
                        else f"{report.reason}{NOT_PREFERRED}{champion} was preferred for the "
                        f"alias ({self._plan.policy.promotion.prefer})",
                    }
                )
            )
        return ExitCode.SUCCESS


def start_of(run: RunReport) -> datetime:
    """Return the run's start from its id, to the microsecond."""
    return datetime.strptime(run.run, "%Y%m%d-%H%M%S-%f").replace(tzinfo=UTC)

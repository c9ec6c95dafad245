"""Promotes what passed: registers the variants and moves the alias, as one stage."""

from __future__ import annotations

from typing import Any

from pipeline.checkpoint import Checkpoint
from pipeline.errors import ExitCode
from pipeline.plan import Plan, VariantPlan, stage_spec
from pipeline.records import StageReference, StageSpec, VariantReport
from pipeline.stage_runner import StageRunner


class Promotion:
    """Promotes the variants of one judged plan.

    Args:
        plan: as judged.
        stages: runs single stages, and has the run's log with the verdicts.
        checkpoint: that the variants come from.
    """

    def __init__(self, plan: Plan, stages: StageRunner, checkpoint: Checkpoint) -> None:
        self._plan = plan
        self._stages = stages
        self._log = stages.log
        self._checkpoint = checkpoint

    def run(self, name: str, registry: str) -> ExitCode:
        """Promote, if a variant passed; the exit code says how the run ends.

        Args:
            name: in the registry.
            registry: its URI.

        Raises:
            RegistryError: the registry refused or cannot be reached.
        """
        passed = [
            (variant, report)
            for variant in self._plan.variants
            if (report := self._log.variant_named(variant.recipe.name)).verdict == "pass"
        ]
        passed = self._first_of_the_ladder(passed)
        if not passed:
            return exit_code_of([report.verdict for report in self._log.variants()])
        spec = self._promotion_stage(passed, name, registry)
        record = self._stages.run(spec)
        for _, report in passed:
            champion = record.result["champion"]
            is_champion = report.recipe == champion
            self._log.variant(
                report.model_copy(
                    update={
                        "promoted": is_champion,
                        "registry_version": record.result["versions"][report.recipe],
                        "reason": report.reason
                        if is_champion
                        else f"{report.reason}; registered, but {champion} was preferred for the "
                        f"alias ({self._plan.policy.promotion.prefer})",
                    }
                )
            )
        return ExitCode.PROMOTED

    def _first_of_the_ladder(
        self, passed: list[tuple[VariantPlan, VariantReport]]
    ) -> list[tuple[VariantPlan, VariantReport]]:
        """Without the rungs that pass after the first that does.

        A rung is tried because none before it passed; with its p-value beside theirs, Holm's
        correction can turn one of those into a pass after all, and then that one goes first.
        """
        rungs = [name for name in self._plan.rungs if name in {r.recipe for _, r in passed}]
        return [each for each in passed if each[1].recipe not in rungs[1:]]

    def _promotion_stage(
        self, passed: list[tuple[VariantPlan, VariantReport]], name: str, registry: str
    ) -> StageSpec:
        inputs: dict[str, StageReference] = {}
        candidates = []
        for variant, report in passed:
            recipe = variant.recipe.name
            inputs[f"weights.{recipe}"] = variant.stages["quantize"].as_reference()
            last = self._plan.last_rounds(variant, self._stages.found)
            judged = self._plan.judge_stage(variant, last)
            inputs[f"judge.{recipe}"] = judged.as_reference()
            if report.throughput is None:
                raise ValueError(f"{recipe} passed without a throughput report")
            candidates.append(
                {
                    "recipe": recipe,
                    "weights_bytes": report.weights_bytes,
                    "throughput_ratio": report.throughput.ratio,
                    "deployable": self._deployable(variant),
                }
            )
        return stage_spec(
            "promote",
            "registry",
            {
                "policy": self._plan.policy.model_dump(),
                "candidates": candidates,
                "name": name,
                "registry": registry,
                "source": {
                    "checkpoint": self._checkpoint.digest,
                    "ref": self._checkpoint.ref,
                    "revision": self._checkpoint.revision or "",
                },
            },
            inputs,
            {},
            self._stages.store.root,
        )

    def _deployable(self, variant: VariantPlan) -> dict[str, Any]:
        """The tuple that the verdict is about: a change in any member makes it say nothing."""
        served = variant.stages["coherence"].parameters
        benchmark = self._stages.finished(variant.stages["benchmark"]).result
        return {
            "weights": self._stages.finished(variant.stages["quantize"]).result["weights_digest"],
            "engine_version": benchmark["engine_version"],
            "environment.serve": served["engine"],
            "environment.evaluate": variant.stages[next(iter(self._plan.policy.suites))].parameters[
                "environment"
            ],
            "environment.quantize": variant.stages["quantize"].parameters["environment"],
            "serving": served["serving"],
            "hardware": served["hardware"],
        }


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """How a run ends by its variants' verdicts, with nothing left to do."""
    if "pass" in verdicts:
        return ExitCode.PROMOTED
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

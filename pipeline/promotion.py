"""Promotes what passed: registers the variants and moves the alias, as one stage.

`prepare model` comes here at its end, and `prepare promote` with a finished run's record: both lay
out the same stage from the records of what was judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.registry.registry import who_am_i
from pipeline.checkpoint import Checkpoint
from pipeline.errors import ExitCode, StoreError, UsageError
from pipeline.events import Progress
from pipeline.evidence import evidence_stage, write_evidence
from pipeline.plan import Plan, stage_spec
from pipeline.records import (
    RunReport,
    StageRecord,
    StageReference,
    StageSpec,
    VariantReport,
)
from pipeline.stage_runner import StageRunner
from pipeline.stages.context import execute
from pipeline.stages.promote import still_holds
from pipeline.store import Store
from pipeline.verdict_check import check_run
from recipes.policy import Policy


@dataclass(frozen=True)
class Order:
    """What `prepare promote` is to do with a finished run.

    Args:
        registry: its URI.
        variant: the recipe to promote; None: what the policy prefers of those that passed.
        override: why a variant that did not pass is promoted all the same.
        name: in the registry; None: the run's.
        alias: that moves; None: the policy's.
        replaces: version that the alias must point to now; None: whichever it does.
    """

    registry: str
    variant: str | None = None
    override: str | None = None
    name: str | None = None
    alias: str | None = None
    replaces: str | None = None


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
            RegistryError: the registry refused or cannot be reached, the champion moved since the
                run began, or the variant was rolled back.
        """
        run = self._log.report()
        passed = first_of_the_ladder(
            [report for report in run.variants if report.verdict == "pass"], self._plan.rungs
        )
        if not passed:
            return exit_code_of([report.verdict for report in run.variants])
        for report in passed:
            self._stages.run(evidence_stage(run, report.recipe, self._stages.store, name=name))
        spec = promotion_stage(
            run,
            passed,
            Order(registry, name=name),
            self._stages.store,
            revision=self._checkpoint.revision or "",
            # Whoever moved the champion while we measured may not have meant to be replaced.
            runtime={"since": start_of(run).isoformat(), "explicit": False},
        )
        record = self._stages.run(spec)
        for report in passed:
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


def promote_run(run: RunReport, store: Store, order: Order, progress: Progress) -> StageRecord:
    """Promote from a finished run's record, once its evidence was seen to give its verdicts.

    Returns:
        the record of the stage `promote`.

    Raises:
        UsageError: the run or variant has nothing that could be promoted, or did not pass.
        StoreError: the evidence is gone, or does not give the verdict that the record tells.
        RegistryError: see `Promotion.run`.
    """
    chosen = chosen_variants(run, order)
    check_evidence(run, chosen, store)
    for variant in chosen:
        write_evidence(
            run, variant.recipe, store, progress, override=order.override, name=order.name
        )
    spec = promotion_stage(run, chosen, order, store, revision=None, runtime={"explicit": True})
    found = store.find(spec.stage, spec.key)
    if found is not None:
        if order.replaces is None and store.current(spec.stage, spec.key) and still_holds(found):
            progress.note("nothing to do: the alias points there already")
            return found
        store.discard(spec.stage, spec.key)
    return execute(spec, progress)


def chosen_variants(run: RunReport, order: Order) -> list[VariantReport]:
    """The variants that the order is about; raises UsageError where there is none."""
    where = f"run {run.run}"
    if run.command.get("gate"):
        raise UsageError(
            "this run judged endpoints that someone else serves: it has no weights to promote",
            where=where,
            cure="`prepare model CHECKPOINT` makes variants that can be promoted",
        )
    if run.command.get("recheck"):
        raise UsageError(
            f"this run rechecked {run.command['recheck']}, which is registered already",
            where=where,
            cure="`prepare registry show NAME` tells what the recheck found; to promote the "
            "weights as a version of another tuple, run `prepare model` there",
        )
    if run.status == "running":
        raise UsageError(
            "this run is not finished", where=where, cure="wait for it, then promote its variant"
        )
    judged = [variant for variant in run.variants if variant.recipe in judge_keys(run)]
    if order.variant is not None:
        judged = [variant for variant in judged if variant.recipe == order.variant]
    names = ", ".join(f"{v.recipe} ({v.verdict})" for v in run.variants) or "none"
    if not judged:
        raise UsageError(
            f"the run judged no variant '{order.variant}'"
            if order.variant
            else "the run judged no variant",
            where=where,
            cure=f"its variants: {names}",
        )
    if order.override is not None:
        if not order.override.strip():
            raise UsageError(
                "--override wants a reason", where=where, cure="say why; it is kept in the history"
            )
        if len(judged) > 1:
            raise UsageError(
                "--override is about one variant, and the run has several",
                where=where,
                cure=f"name it: RUN:VARIANT; its variants: {names}",
            )
        return judged
    passed = [variant for variant in judged if variant.verdict == "pass"]
    if not passed:
        raise UsageError(
            "no variant passed, so none is promoted"
            if order.variant is None
            else f"the verdict on '{order.variant}' is '{judged[0].verdict}', not 'pass'",
            where=where,
            cure="if it is to be promoted all the same: --override REASON, which is kept in the "
            f"history; the run's variants: {names}",
        )
    return first_of_the_ladder(passed, tuple(run.command.get("ladder") or ()))


def check_evidence(run: RunReport, chosen: Sequence[VariantReport], store: Store) -> None:
    """Compute the verdicts again; raises StoreError where they do not follow from the evidence."""
    names = {variant.recipe for variant in chosen}
    for check in check_run(run, store):
        if check.recipe in names and check.differences:
            raise StoreError(
                f"the evidence on '{check.recipe}' does not give the verdict of the record: "
                f"{check.differences[0]}",
                where=str(store.root / "runs" / run.run),
                cure=f"`prepare verify {run.run}` names every difference; run the model again",
            )


def first_of_the_ladder(passed: list[VariantReport], rungs: tuple[str, ...]) -> list[VariantReport]:
    """Without the rungs that pass after the first that does.

    A rung is tried because none before it passed; with its p-value beside theirs, Holm's
    correction can turn one of those into a pass after all, and then that one goes first.
    """
    names = {report.recipe for report in passed}
    later = [rung for rung in rungs if rung in names][1:]
    return [report for report in passed if report.recipe not in later]


def promotion_stage(
    run: RunReport,
    chosen: Sequence[VariantReport],
    order: Order,
    store: Store,
    *,
    revision: str | None,
    runtime: dict[str, Any],
) -> StageSpec:
    """The stage that registers the chosen variants of a run, and moves the alias to one.

    Args:
        run: with the keys of its stages.
        chosen: variants that were judged.
        order: where to, and under which name.
        store: that has the stages.
        revision: commit of the checkpoint on the Hub; None: as the store remembers it.
        runtime: how the stage finds out what it replaces.

    Raises:
        StoreError: a stage of the run is gone from the store.
    """
    inputs: dict[str, StageReference] = {}
    candidates = []
    keys = judge_keys(run)
    policy: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for variant in chosen:
        judged = Judged(store, keys[variant.recipe])
        policy = judged.judge.parameters["policy"]
        reasons[variant.recipe] = judged.reason(variant)
        inputs[f"weights.{variant.recipe}"] = evidence_stage(
            run, variant.recipe, store, override=order.override, name=order.name
        ).as_reference()
        inputs[f"judge.{variant.recipe}"] = StageReference(stage="judge", key=judged.judge.key)
        if revision is None:
            revision = revision_of(store, judged.weights.key)
        if variant.throughput is None:
            raise ValueError(f"{variant.recipe} was judged without a load test")
        candidates.append(
            {
                "recipe": variant.recipe,
                "weights_bytes": variant.weights_bytes,
                "throughput_ratio": variant.throughput.ratio,
                "verdict": variant.verdict,
                "trust_remote_code": judged.benchmark.parameters["trust_remote_code"],
                "deployable": judged.deployable(),
            }
        )
    aliases = Policy.model_validate(policy).promotion
    alias = order.alias or aliases.alias
    if run.checkpoint is None:
        raise ValueError("a run with a judged variant has a checkpoint")
    return stage_spec(
        "promote",
        "registry",
        {
            "policy": policy,
            "candidates": candidates,
            "name": order.name or run.registered_name or run.command["name"],
            "registry": order.registry,
            "alias": alias,
            "previous_alias": aliases.previous_alias if alias == aliases.alias else None,
            "override": order.override,
            "source": {
                "checkpoint": run.checkpoint.digest,
                "ref": run.checkpoint.ref,
                "revision": revision or "",
            },
        },
        inputs,
        {
            **runtime,
            **({"replaces": order.replaces} if order.replaces is not None else {}),
            "run": run.run,
            "who": who_am_i(),
            "reasons": reasons,
        },
        store.root,
    )


class Judged:
    """What one verdict rests on, found in the store from the judge stage on.

    Args:
        store: where the stages are.
        key: of the judge stage.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self.judge = self._found(StageReference(stage="judge", key=key))
        self.benchmark = self._found(self.judge.inputs["candidate.benchmark"])
        self.weights = self._found(self.benchmark.inputs["weights"]).inputs["weights"]

    def reason(self, variant: VariantReport) -> str:
        """Why it got its verdict; where all variants together changed that, the record tells."""
        own = self.judge.result
        return str(own["reason"] if own["verdict"] == variant.verdict else variant.reason)

    def deployable(self) -> dict[str, Any]:
        """The tuple that the verdict is about: a change in any member makes it say nothing."""
        served = self.benchmark.parameters
        quantize = self._found(self.weights)
        suite = next(iter(self.judge.parameters["policy"]["suites"]))
        evaluate = self._found(self.judge.inputs[f"candidate.{suite}"])
        return {
            "weights": quantize.result["weights_digest"],
            "engine_version": self.benchmark.result["engine_version"],
            "environment.serve": served["engine"],
            "environment.evaluate": evaluate.parameters["environment"],
            "environment.quantize": quantize.parameters["environment"],
            "serving": served["serving"],
            "hardware": served["hardware"],
        }

    def _found(self, reference: StageReference) -> StageRecord:
        record = self._store.find(reference.stage, reference.key)
        if record is None:
            raise StoreError(
                f"the stage '{reference.stage}' of this run is gone from the store",
                where=str(self._store.stage_folder(reference.stage, reference.key)),
                cure="run the model again; what is still there is reused",
            )
        return record


def judge_keys(run: RunReport) -> dict[str, str]:
    """Key of the judge stage by variant."""
    return {
        stage.variant: str(stage.key)
        for stage in run.stages
        if stage.name == "judge" and stage.status != "failed"
    }


def start_of(run: RunReport) -> datetime:
    """When the run began, to the microsecond, as its id tells."""
    return datetime.strptime(run.run, "%Y%m%d-%H%M%S-%f").replace(tzinfo=UTC)


def revision_of(store: Store, key: str) -> str:
    """The commit that weights come from, as the spec of their stage tells; '' when it is gone."""
    specs: list[Path] = [
        path
        for folder in store.run_folders()
        for path in folder.glob(f"stages/*.quantize.{key[:8]}.json")
    ]
    for path in specs:
        spec = StageSpec.model_validate_json(path.read_text(encoding="utf-8"))
        if spec.key == key:
            return str(spec.runtime["checkpoint"]["revision"] or "")
    return ""


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """How a run ends by its variants' verdicts, with nothing left to do."""
    if "pass" in verdicts:
        return ExitCode.PROMOTED
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED

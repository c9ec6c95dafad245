"""Promotes a finished run's variants from its record, for `prepare promote`."""

from __future__ import annotations

from dataclasses import replace

from artifacts.evidence.recompute import check_run, claims_of, find_missing
from artifacts.run_record import RunReport, VariantReport
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.events import Progress
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store
from pipeline.release.evidence_stage import write_evidence
from pipeline.release.promotion_stage import PromotionRequest, promotion_stage
from pipeline.release.stages.promote.run import still_holds
from pipeline.stages.context import execute


def promote_run(
    run: RunReport, store: Store, order: PromotionRequest, progress: Progress
) -> StageRecord:
    """Promote from a finished run's record, after checking that its evidence gives its verdicts.

    Returns:
        the record of the stage `promote`.

    Raises:
        UsageError: the run or variant cannot be promoted, or did not pass.
        StoreError: the evidence is missing, or does not give the recorded verdict.
        RegistryError: see `pipeline.release.stages.promote.run`.
    """
    chosen = choose_variants(run, order)
    if order.override is not None and chosen[0].verdict == "pass":
        progress.note(f"{chosen[0].recipe} passed: there is nothing to override")
        order = replace(order, override=None)
    check_evidence(run, store)
    for variant in chosen:
        write_evidence(
            run,
            variant.recipe,
            store,
            progress,
            override=order.override,
            name=order.name,
            signer=order.signer,
        )
    spec = promotion_stage(run, chosen, order, store)
    found = store.find(spec.stage, spec.key)
    if found is not None:
        if (
            order.replaces is None
            and store.find_current(spec.stage, spec.key)
            and still_holds(found)
        ):
            progress.note("nothing to do: the alias points there already")
            return found
        store.discard(spec.stage, spec.key)
    return execute(spec, progress)


def choose_variants(run: RunReport, order: PromotionRequest) -> list[VariantReport]:
    """Return the requested variants; raise UsageError if there is none."""
    where = f"run {run.run}"
    if run.kind == "gate":
        raise UsageError(
            "this run judged endpoints that someone else serves: it has no weights to promote",
            where=where,
            hint="`prepare model CHECKPOINT` makes variants that can be promoted",
        )
    if run.kind == "recheck":
        raise UsageError(
            f"this run rechecked {run.options.recheck}, which is registered already",
            where=where,
            hint="`prepare registry show NAME` shows what the recheck found; to promote the "
            "weights as a version of another tuple, run `prepare model` there",
        )
    if run.kind == "tune":
        raise UsageError(
            "this run tuned how a model is served: it gated no answers",
            where=where,
            hint="gate and promote it as tuned: prepare model CHECKPOINT --profile "
            + (run.tuning.profile if run.tuning and run.tuning.profile else "TUNED.yaml"),
        )
    if run.status == "running":
        raise UsageError(
            "this run is not finished", where=where, hint="wait for it, then promote its variant"
        )
    judges = claims_of(run).judges
    judged = [variant for variant in run.variants if variant.recipe in judges]
    if order.variant is not None:
        judged = [variant for variant in judged if variant.recipe == order.variant]
    names = ", ".join(f"{v.recipe} ({v.verdict})" for v in run.variants) or "none"
    if not judged:
        raise UsageError(
            f"the run judged no variant '{order.variant}'"
            if order.variant
            else "the run judged no variant",
            where=where,
            hint=f"its variants: {names}",
        )
    if order.override is not None:
        if not order.override.strip():
            raise UsageError(
                "--override needs a reason", where=where, hint="say why; it is kept in the history"
            )
        if len(judged) > 1:
            raise UsageError(
                "--override is about one variant, and the run has several",
                where=where,
                hint=f"name it: RUN:VARIANT; its variants: {names}",
            )
        return judged
    passed = [variant for variant in judged if variant.verdict == "pass"]
    if not passed:
        raise UsageError(
            "no variant passed, so none is promoted"
            if order.variant is None
            else f"the verdict on '{order.variant}' is '{judged[0].verdict}', not 'pass'",
            where=where,
            hint="to promote it anyway: --override REASON, which is kept in the "
            f"history; the run's variants: {names}",
        )
    return passed


def check_evidence(run: RunReport, store: Store) -> None:
    """Compute every verdict of the run again: a variant's bundle has the others' too.

    Raises:
        StoreError: a verdict does not follow from the evidence.
    """
    missing = find_missing(run)
    for check in check_run(run, store):
        if problems := [*check.differences, *missing]:
            raise StoreError(
                f"the evidence on '{check.recipe}' does not give the verdict of the record: "
                f"{problems[0]}",
                where=str(store.root / "runs" / run.run),
                hint=f"`prepare verify {run.run}` names every difference; run the model again",
            )

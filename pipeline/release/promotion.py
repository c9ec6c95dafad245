"""Plans the stage `promote` from the records of a run.

`prepare model` uses `promotion_stage`; `prepare promote` uses `promote_run` with a finished run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from artifacts.evidence.recompute import check_run, claims_of, find_missing
from artifacts.multiple_testing import first_of_the_ladder
from artifacts.registry.registry import who_am_i
from artifacts.run_record import RunReport, VariantReport
from artifacts.verdict_inputs import VerdictInputs
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.events import Progress
from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.release.evidence_stage import evidence_stage, write_evidence
from pipeline.release.signer import Signer
from pipeline.release.stages.promote import (
    PROMOTE,
    PromotedSource,
    PromoteParameters,
    PromoteRuntime,
    PromotionCandidate,
)
from pipeline.release.stages.promote.run import still_holds
from pipeline.stages.context import execute
from recipes.policy import Policy


@dataclass(frozen=True)
class PromotionRequest:
    """Request of `prepare promote` for a finished run."""

    registry: str  # its URI
    # the recipe to promote; None: what the policy prefers of those that passed
    variant: str | None = None
    override: str | None = None  # why a variant that did not pass is promoted anyway
    name: str | None = None  # in the registry; None: the run's
    alias: str | None = None  # that moves; None: the policy's
    replaces: str | None = None  # version that the alias must point to now; None: whichever it does
    signer: Signer | None = None  # of what is registered


def promotion_stage(
    run: RunReport,
    chosen: Sequence[VariantReport],
    order: PromotionRequest,
    store: Store,
    *,
    since: datetime | None = None,
) -> StageSpec:
    """Return the stage that registers a run's chosen variants, and moves the alias to one.

    The stage's `runtime` states how it finds the version that it replaces.

    Raises:
        EvidenceError: a stage of the run is missing from the store.
    """
    inputs: dict[str, StageReference] = {}
    candidates = []
    keys = claims_of(run).judges
    policy: Policy | None = None
    reasons: dict[str, str] = {}
    for variant in chosen:
        judged = VerdictInputs.load_by_key(store.find, keys[variant.recipe])
        policy = judged.judge.parameters.policy
        reasons[variant.recipe] = reason_of(judged, variant)
        inputs[f"weights.{variant.recipe}"] = evidence_stage(
            run,
            variant.recipe,
            store,
            override=order.override,
            name=order.name,
            signer=order.signer,
        ).as_reference()
        inputs[f"judge.{variant.recipe}"] = judged.judge.record.as_reference()
        deployable = judged.deployable(store.find)
        if deployable.unfit:
            raise UsageError(
                f"{variant.recipe} cannot be promoted: {deployable.unfit}",
                where=f"run {run.run}, --profile {run.options.profile}",
                hint="measure it with a profile whose rejection_sample_method is 'standard'",
            )
        candidates.append(
            PromotionCandidate(
                recipe=variant.recipe,
                weights_bytes=judged.quantize.result.weights_bytes,
                throughput_ratio=next((s.estimate for s in variant.speed if s.is_ratio), None),
                verdict=variant.verdict,
                trust_remote_code=judged.trust_remote_code,
                deployable=deployable,
            )
        )
    if run.checkpoint is None or policy is None:
        raise ValueError("a run with a judged variant has a checkpoint")
    aliases = policy.promotion
    alias = order.alias or aliases.alias
    return PROMOTE.spec(
        "registry",
        PromoteParameters(
            policy=policy,
            candidates=candidates,
            name=order.name or run.registered_name or run.options.name or "",
            registry=order.registry,
            alias=alias,
            previous_alias=aliases.previous_alias if alias == aliases.alias else None,
            override=order.override,
            source=PromotedSource(
                checkpoint=run.checkpoint.digest,
                ref=run.checkpoint.ref,
                revision=run.checkpoint.source.revision if run.checkpoint.source else "",
            ),
        ),
        inputs,
        PromoteRuntime(
            explicit=since is None,
            since=since.isoformat() if since is not None else None,
            replaces=order.replaces,
            run=run.run,
            who=who_am_i(),
            reasons=reasons,
        ),
        store.root,
    )


def reason_of(judged: VerdictInputs, variant: VariantReport) -> str:
    """Return the verdict's reason; the record states whether other variants changed it."""
    own = judged.judge.result
    return own.reason if own.verdict == variant.verdict else variant.reason


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
    return first_of_the_ladder(passed, run.options.ladder or ())


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

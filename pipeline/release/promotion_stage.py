"""The stage that promotes a run's variants, and the request for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from artifacts.evidence.recompute import claims_of
from artifacts.registry.registry import who_am_i
from artifacts.run_record import RunReport, VariantReport
from artifacts.verdict_inputs import VerdictInputs
from pipeline.core.errors import UsageError
from pipeline.core.stage_record import StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.release.evidence_stage import evidence_stage
from pipeline.release.signer import Signer
from pipeline.release.stages.promote import (
    PROMOTE,
    PromotedSource,
    PromoteParameters,
    PromoteRuntime,
    PromotionCandidate,
)
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
                made_by=judged.made_by,
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

"""A judged variant that may become a version: what is asked for, its evidence, and its tags."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.deployable import Deployable, as_tag
from artifacts.evidence.bundle import BundleVerdict
from artifacts.evidence.signing import Signer
from artifacts.registry import (
    EVIDENCE_TAG,
    JUDGE_TAG,
    MANIFEST_TAG,
    POLICY_TAG,
    RUN_TAG,
    WEIGHTS_STAGE_TAG,
)
from artifacts.run_record import RunReport, VariantReport, report_judged, report_unjudged
from pipeline.stages.evidence import Evidence
from pipeline.stages.verdict import policy_digest
from prepare.digest import digest_json
from prepare.errors import UsageError
from prepare.stage import StageRecord
from prepare.store import Store


@dataclass(frozen=True)
class PromotionRequest:
    """What to promote, and where to."""

    registry: str  # its URI
    # the recipe; None: the policy's preference among those that passed
    variant: str | None = None
    override: str | None = None  # why a variant without a pass is promoted
    name: str | None = None  # in the registry; None: the run's
    alias: str | None = None  # None: the policy's
    replaces: str | None = None  # version that the alias must point to now; None: any
    # Number of a move: the alias must point to what it did after it; None: any.
    since: int | None = None
    signer: Signer | None = None


@dataclass(frozen=True)
class Candidate:
    """A variant to register."""

    report: VariantReport
    judged: Evidence
    heading: BundleVerdict
    records: tuple[StageRecord, ...]
    identity: str  # of all that its evidence follows from
    signer: Signer | None

    @property
    def recipe(self) -> str:
        return self.report.recipe

    def preference(self, prefer: str) -> tuple[float, int]:
        """Return the sort key: throughput, then small weights."""
        ratio = next((s.estimate for s in self.report.speed if s.is_ratio), None)
        measured = ratio or 0.0 if prefer == "throughput" else 0.0
        return measured, -self.judged.weights.result.weights_bytes

    def tags(self, run: RunReport, manifest: str) -> dict[str, str]:
        """Return the tuple and its origin as text."""
        judge = self.judged.judge.record
        source = self.heading.source
        return {
            **evidence_tags(self.judged, self.heading),
            MANIFEST_TAG: manifest,
            EVIDENCE_TAG: self.identity,
            JUDGE_TAG: judge.key,
            WEIGHTS_STAGE_TAG: self.judged.weights.record.key,
            RUN_TAG: run.run,
            "prepare.signer": self.heading.signer,
            "prepare.policy": self.judged.judge.parameters.policy.name,
            "prepare.source.checkpoint": source.digest,
            "prepare.source.ref": run.checkpoint.ref if run.checkpoint else "",
            "prepare.source.revision": as_tag(source.revision or ""),
        }


def find_candidate(
    run: RunReport, variant: VariantReport, store: Store, request: PromotionRequest
) -> Candidate:
    """Return a judged variant with its evidence."""
    recipe = variant.recipe
    judges = run.judges
    tried = sorted(run.attempted)
    if recipe not in judges or run.checkpoint is None:
        raise UsageError(
            f"run {run.run} did not judge '{recipe}', so there is no evidence to bundle",
            hint=f"judged were: {', '.join(judges) or 'none'}",
        )
    inputs = {name: Evidence.of_variant(store, key) for name, key in judges.items()}
    judged = inputs[recipe]
    if why := Deployable.of(judged).unfit:
        raise UsageError(
            f"{recipe} cannot be promoted: {why}",
            where=f"run {run.run}, --profile {run.resolved.profile}",
            hint="measure it with a profile whose rejection_sample_method is 'standard'",
        )
    judges_of_all = [evidence.judge for evidence in inputs.values()]
    roots = [stage.record for stage in (judged.checked_weights, *judges_of_all)]
    records = tuple(judged.collect(roots))
    outcomes = {v.recipe: v.verdict for v in run.variants}
    reports = []
    for record in tried:
        if record in inputs:
            size = inputs[record].weights.result.weights_bytes
            reports.append(report_judged(record, size, inputs[record].judge.result))
            continue
        outcome = outcomes.get(record, "skipped")
        unjudged = outcome if outcome in ("fail", "error") else "skipped"
        reports.append(report_unjudged(record, unjudged, "has no verdict by gates", None))
    verdict = BundleVerdict(
        run=run.run,
        recipe=recipe,
        override=request.override,
        registered_name=request.name or run.registered_name or run.resolved.name or recipe,
        profile=run.resolved.profile,
        policy=run.resolved.policy,
        command=run.request.line(public=True),
        signer=request.signer.fingerprint if request.signer else "",
        source=run.checkpoint.published(),
        attempted=tuple(tried),
        judges=judges,
        variants=tuple(reports),
    )
    # Another run that reused all of this is the same version.
    identity = digest_json(
        [
            verdict.model_dump(mode="json", exclude={"run", "command", "prepare_version"}),
            [[record.stage, record.key, record.result] for record in records],
        ]
    )
    return Candidate(variant, judged, verdict, records, identity, request.signer)


def evidence_tags(evidence: Evidence, verdict: BundleVerdict) -> dict[str, str]:
    """Return the tags that follow from the evidence."""
    made_by = {"prepare.made_by": evidence.made_by} if evidence.made_by else {}
    return {
        **Deployable.of(evidence).tags(),
        POLICY_TAG: policy_digest(evidence.judge.record),
        "prepare.recipe": verdict.recipe,
        "prepare.verdict": verdict.variant.verdict,
        "prepare.not_shown": verdict.variant.not_shown,
        "prepare.override": verdict.override or "",
        "prepare.trust_remote_code": as_tag(evidence.trust_remote_code),
        **made_by,
    }

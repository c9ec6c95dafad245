"""Registers variants, and moves the alias to the preferred one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from artifacts.deployable import as_tag, verdict_tags
from artifacts.evidence.manifest import MANIFEST, differences, read_manifest
from artifacts.registry.history import AliasChange, ChangeReason, HistoryEntry
from artifacts.registry.registry import EVIDENCE_TAG, FILES_TAG, TUPLE_TAG, Registry
from artifacts.registry.registry_address import open_registry, still_has
from pipeline.checkpoint.weights_folder_files import ADDED_LATER, BUNDLE, digest_of_other_files
from pipeline.core.digest import digest_file
from pipeline.core.errors import EvidenceError, RegistryError
from pipeline.core.stage_record import StageRecord
from pipeline.release.stages.evidence import EVIDENCE
from pipeline.release.stages.promote import (
    PROMOTE,
    PromoteParameters,
    PromoteResult,
    PromoteRuntime,
    PromotionCandidate,
)
from pipeline.stages.context import StageContext
from pipeline.stages.judge import policy_digest

Context = StageContext[PromoteParameters, PromoteRuntime]


def run(context: Context) -> PromoteResult:
    """Register each candidate, then move the alias to one of them.

    The alias must point to its target at the run's begin (`since`), to a named version
    (`replaces`), or, if requested, to anything.

    Raises:
        EvidenceError: a candidate differs from what its stage made.
        RegistryError: the registry refused or cannot be reached; the alias has moved meanwhile; or
            the chosen version was rolled back. The versions stay registered, no alias has moved.
    """
    parameters, candidates = context.parameters, context.parameters.candidates
    for candidate in candidates:
        check_unchanged(context, candidate.recipe)
    registry = open_registry(parameters.registry)
    name, alias = parameters.name, parameters.alias
    registry.settle(name)
    replaces = replaced_version(context, registry)
    versions = {
        candidate.recipe: registry.register(
            name, weights_folder(context, candidate.recipe), tags(context, candidate)
        )
        for candidate in candidates
    }
    prefer = parameters.policy.promotion.prefer
    chosen = max(candidates, key=lambda candidate: preference(candidate, prefer))
    version = versions[chosen.recipe]
    if not context.runtime.explicit:
        refuse_after_rollback(registry, name, alias, version, context.runtime.run)
    entry = registry.move_alias(
        name,
        AliasChange(
            alias=alias,
            version=version,
            replaces=replaces,
            cause=cause(context, chosen),
            previous_alias=parameters.previous_alias,
        ),
    )
    return PromoteResult(
        name=name,
        versions=versions,
        champion=chosen.recipe,
        alias=alias,
        registry=parameters.registry,
        replaced=entry.replaced if entry else None,
        moved=entry is not None,
    )


def still_holds(record: StageRecord) -> bool:
    """Return whether the registry still has this record's versions.

    If the alias moved on, the same request promotes again, unless it was rolled back.
    """
    result = PROMOTE.result_of(record)
    return still_has(
        result.registry,
        result.name,
        result.versions.values(),
        {result.alias: result.versions[result.champion]},
    )


def replaced_version(context: Context, registry: Registry) -> str | None:
    """Return the version that the alias must point to before the move; None for none."""
    name, alias = context.parameters.name, context.parameters.alias
    if context.runtime.replaces is not None:
        return context.runtime.replaces
    if context.runtime.since is not None:
        since = datetime.fromisoformat(context.runtime.since)
        return find_pointed_to(registry.history(name), alias, since)
    return registry.aliases(name).get(alias)


def find_pointed_to(history: Sequence[HistoryEntry], alias: str, at: datetime) -> str | None:
    """Return the version that the alias pointed to at that time.

    A move by another program has no known time, so it counts as earlier.
    """
    version = None
    for entry in history:
        known_later = entry.action != "outside" and datetime.fromisoformat(entry.when) > at
        if alias in entry.changes and not known_later:
            version = entry.changes[alias]
    return version


def refuse_after_rollback(
    registry: Registry, name: str, alias: str, version: str, run: str
) -> None:
    """Refuse to undo a rollback by repeating a run.

    Raises:
        RegistryError: the last move rolled back this deployable tuple, with any evidence.
    """
    moves = [entry for entry in registry.history(name) if alias in entry.changes]
    if not moves or moves[-1].action != "rollback":
        return
    last = moves[-1]
    tuples = {each.version: each.tags.get(TUPLE_TAG) for each in registry.versions(name)}
    if tuples.get(last.replaced or "", "gone") == tuples[version]:
        raise RegistryError(
            f"version {last.replaced} of '{name}', which is the same, was rolled back by "
            f"{last.who} at {last.when}" + (f" ({last.reason})" if last.reason else ""),
            where=registry.uri,
            hint=f"`prepare promote {run}` promotes it anyway",
        )


def cause(context: Context, chosen: PromotionCandidate) -> ChangeReason:
    """Return the promotion's entry for the history."""
    override = context.parameters.override
    return ChangeReason(
        action="promote" if override is None else "override",
        who=context.runtime.who,
        run=context.runtime.run,
        verdict=chosen.verdict,
        reason=override or context.runtime.reasons[chosen.recipe],
    )


def preference(candidate: PromotionCandidate, prefer: str) -> tuple[float, int]:
    """Return the sort key, larger is better: throughput ratio if measured, then small weights."""
    ratio = candidate.throughput_ratio if prefer == "throughput" else None
    return ratio or 0.0, -candidate.weights_bytes


def weights_folder(context: Context, recipe: str) -> Path:
    """Return the folder that a registered version points to: weights, card and evidence."""
    return context.input_folder(f"weights.{recipe}") / "output"


def check_unchanged(context: Context, recipe: str) -> None:
    """Check that the folder is as its stage made it, since its digests are registered.

    Raises:
        EvidenceError: a file was changed, added or removed since.
    """
    folder = weights_folder(context, recipe)
    made = EVIDENCE.result_of(context.input_record(f"weights.{recipe}"))
    bundle = folder / BUNDLE
    manifest = read_manifest(bundle)
    found = differences(bundle, manifest.evidence_files, (MANIFEST,))
    found += differences(folder, manifest.model_files, (BUNDLE, *ADDED_LATER))
    if digest_file(bundle / MANIFEST) != made.manifest_digest:
        found.append(f"{bundle / MANIFEST}: the file was changed")
    if found:
        raise EvidenceError(
            f"the folder is not as it was when '{recipe}' was judged: {found[0]}",
            where=str(folder),
            hint="delete the stage's folder, and promote the run again: it is made again",
        )


def signer_of(context: Context, recipe: str) -> str:
    """Return the fingerprint of the key that signed the folder; '' for none."""
    return EVIDENCE.result_of(context.input_record(f"weights.{recipe}")).signer or ""


def tags(context: Context, candidate: PromotionCandidate) -> dict[str, str]:
    """Return the deployable tuple and its origin as text tags of the version."""
    parameters, inputs = context.parameters, context.spec.inputs
    recipe, judge = candidate.recipe, f"judge.{candidate.recipe}"
    return {
        **verdict_tags(
            candidate.deployable,
            policy=policy_digest(context.input_record(judge)),
            recipe=recipe,
            verdict=candidate.verdict,
            override=parameters.override,
            trust_remote_code=candidate.trust_remote_code,
            made_by=candidate.made_by,
        ),
        EVIDENCE_TAG: inputs[f"weights.{recipe}"].key,
        FILES_TAG: digest_of_other_files(weights_folder(context, recipe)),
        "prepare.signer": signer_of(context, recipe),
        "prepare.run": context.runtime.run,
        "prepare.policy": parameters.policy.name,
        "prepare.verdict.stage": inputs[judge].key,
        **{f"prepare.source.{key}": as_tag(v) for key, v in parameters.source.model_dump().items()},
    }

"""Checks an evidence bundle without a store, network or server.

It checks every digest and recomputes the verdict. An author can forge an entire bundle; only a
signature (`signing.py`) identifies the author.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.evidence.bundle import VERDICT, BundleVerdict, open_bundle
from artifacts.evidence.manifest import MANIFEST, Manifest, differences, read_manifest
from artifacts.evidence.verify import Evidence, RecordedVerdicts, VariantCheck, check_claims
from artifacts.multiple_testing import NOT_PREFERRED
from artifacts.verdict_inputs import VerdictInputs, collect_stages
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import (
    ADDED_LATER,
    ANSWERS,
    BUNDLE,
    SIGNATURE,
    digest_auxiliary_files,
)
from pipeline.core.errors import CheckpointError, EvidenceError, StoreError, raise_as
from pipeline.core.stage_record import StageReference
from pipeline.core.untrusted import read_record
from pipeline.stages.judge import policy_digest
from pipeline.stages.judge.consistency import find_served_otherwise


@dataclass(frozen=True)
class BundleCheck:
    """Result of a bundle check."""

    run: str  # that it was made in
    recipe: str  # of the variant that it is about
    verdict: str  # on that variant, as kept
    override: str | None  # why it was promoted though it did not pass
    files: int  # how many were checked against their digests
    weights_checked: bool  # whether it lay next to weights, which were checked with it
    problems: tuple[str, ...]  # what is wrong with files, and what does not fit together
    variants: tuple[VariantCheck, ...]  # verdicts of all variants, computed again
    made_by: str = ""  # who made the weights; '' if a recipe did
    answers_withheld: bool = False  # the copy lacks them, so no verdict was computed again

    @property
    def is_sound(self) -> bool:
        return not self.problems and not any(check.differences for check in self.variants)


def find_bundle(folder: Path) -> Path | None:
    """Return the bundle that a folder is or contains, or None.

    Raises:
        EvidenceError: the bundle is a link to another folder.
    """
    for place in (folder / BUNDLE, folder):
        if not (place / MANIFEST).is_file():
            continue
        for path in (place, place / MANIFEST):
            if path.is_symlink():
                raise EvidenceError(
                    "the evidence is a link to somewhere else",
                    where=str(path),
                    hint="name the folder that it leads to, or get it again with `prepare pull`",
                )
        return place
    return None


def check_bundle(folder: Path) -> BundleCheck:
    """Check a bundle with the weights next to it, or a bundle's folder alone.

    Raises:
        EvidenceError: there is no readable bundle.
    """
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            "there is no evidence bundle here",
            where=str(folder / BUNDLE),
            hint="name a folder that `prepare pull` made, or its prepare-evidence/",
        )
    manifest, made_by = read_manifest(bundle), ""
    has_weights = bundle != folder
    answers = bundle / Path(ANSWERS).name
    withheld = not answers.exists()
    listed = tuple(e for e in manifest.evidence_files if not withheld or e.path != answers.name)
    problems = differences(bundle, listed, (MANIFEST,))
    if has_weights:
        problems += differences(folder, manifest.model_files, (BUNDLE, *ADDED_LATER))
    # After these: what is listed is a plain file, and no pipe that never ends.
    verdict = read_verdict(bundle)
    if has_weights and verdict.signer and not (folder / SIGNATURE).is_file():
        problems.append(f"{folder / SIGNATURE}: the signature is missing")
    try:
        kept = verdict.variant.verdict
        with open_bundle(bundle) as (store, stages):
            source = Evidence(store, bundle, not withheld)
            variants = check_claims(
                RecordedVerdicts(verdict.variants, verdict.attempted, verdict.judges), source
            )
            try:
                problems += find_bundle_mismatches(manifest, verdict, source, stages)
                if judge := verdict.judges.get(verdict.recipe):
                    made_by = VerdictInputs.load_by_key(source.store.find, judge).made_by
                if has_weights:
                    problems += find_other_weights(folder, manifest, verdict, source)
            except (EvidenceError, StoreError) as error:  # a record is gone or damaged
                problems.append(f"{error.where}: {error.message}")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise EvidenceError(
            f"the records of the bundle cannot be understood: {type(error).__name__}: {error}",
            where=str(bundle),
            hint="it was changed, or another version of prepare wrote it: "
            f"{manifest.prepare_version}",
        ) from error
    return BundleCheck(
        run=verdict.run,
        recipe=verdict.recipe,
        verdict=kept,
        override=verdict.override,
        files=len(listed) + (len(manifest.model_files) if has_weights else 0),
        weights_checked=has_weights,
        problems=tuple(problems),
        variants=tuple(variants),
        made_by=made_by,
        answers_withheld=withheld,
    )


def read_verdict(bundle: Path) -> BundleVerdict:
    """Return a bundle's verdict; raises EvidenceError if it is missing or damaged."""
    file = bundle / VERDICT
    with (
        raise_as(EvidenceError, "the verdict cannot be read", file),
        raise_as(
            EvidenceError, "the verdict is damaged, or of a newer prepare", file, errors=ValueError
        ),
    ):
        return read_record(file, BundleVerdict)


def find_bundle_mismatches(
    manifest: Manifest, verdict: BundleVerdict, source: Evidence, stages: set[str]
) -> list[str]:
    """Return contradictions within the bundle other than wrong digests."""
    found = [*find_count_mismatches(verdict), *find_unused_stages(stages, verdict, source)]
    if manifest.recipe != verdict.recipe:
        found.append(f"{MANIFEST} is about '{manifest.recipe}', {VERDICT} about '{verdict.recipe}'")
    found += [
        f"{VERDICT}: the reason for '{variant.recipe}' names a promotion, and there was none yet"
        for variant in verdict.variants
        if NOT_PREFERRED in variant.reason or variant.promoted or variant.registry_version
    ]
    if verdict.recipe not in verdict.judges:
        return [*found, f"{VERDICT} names no stage 'judge' for '{verdict.recipe}'"]
    if verdict.variant.verdict != "pass" and not verdict.override:
        found.append(
            f"the verdict on '{verdict.recipe}' is '{verdict.variant.verdict}', and no reason is "
            "given for promoting it anyway"
        )
    judged = VerdictInputs.load_by_key(source.store.find, verdict.judges[verdict.recipe])
    if verdict.source.digest != judged.screen.parameters.checkpoint:
        found.append(f"{VERDICT}: the source is not the checkpoint that was the baseline")
    profile = judged.judge.parameters.profile
    for side, heard in (("baseline", judged.baseline_screen), ("candidate", judged.screen)):
        found += find_served_otherwise("screen", side, heard.parameters, profile)
    return found


def find_count_mismatches(verdict: BundleVerdict) -> list[str]:
    """Return where the verdict's lists of variants disagree."""
    names = [variant.recipe for variant in verdict.variants]
    found = []
    if len(set(names)) != len(names) or len(set(verdict.attempted)) != len(verdict.attempted):
        found.append(f"{VERDICT} names a variant twice")
    if set(names) != set(verdict.attempted):
        found.append(
            f"{VERDICT} says that {', '.join(verdict.attempted) or 'nothing'} was tried, and has "
            f"verdicts on {', '.join(names) or 'nothing'}"
        )
    if len(set(verdict.judges.values())) != len(verdict.judges):
        found.append(f"{VERDICT} gives two variants the same stage 'judge'")
    found += [
        f"{VERDICT} names a stage 'judge' for '{recipe}', and no verdict on it"
        for recipe in verdict.judges
        if recipe not in names
    ]
    found += [
        f"{VERDICT} has gates of '{variant.recipe}', and names no stage 'judge' for it"
        for variant in verdict.variants
        if variant.recipe not in verdict.judges
        and (variant.p_value is not None or variant.gates or variant.speed or variant.cost)
    ]
    return found


def find_unused_stages(there: set[str], verdict: BundleVerdict, source: Evidence) -> list[str]:
    """Return stages of the bundle that no verdict in it uses.

    Raises:
        EvidenceError: a stage that a verdict uses is missing.
    """
    judges = [StageReference(stage="judge", key=key) for key in verdict.judges.values()]
    records = collect_stages(source.store.find, judges)
    claimed = {f"stages/{record.stage}/{record.key}" for record in records}
    found = [f"{place}: no verdict depends on this stage" for place in sorted(there - claimed)]
    judged = [record for record in records if record.stage == "judge"]
    if len({policy_digest(each) for each in judged}) > 1:
        found.append(f"{VERDICT}: the variants were judged by different policies")
    return found


def find_other_weights(
    folder: Path, manifest: Manifest, verdict: BundleVerdict, source: Evidence
) -> list[str]:
    """Return how the weights and auxiliary files differ from the judged ones."""
    if verdict.recipe not in verdict.judges:
        return []
    judged = VerdictInputs.load_by_key(source.store.find, verdict.judges[verdict.recipe])
    listed = {each.path: each.sha256 for each in manifest.model_files}
    try:
        digest = weights_digest(folder, lambda file: listed.get(file.name, ""))
        carried = digest_auxiliary_files(folder)
    except CheckpointError as error:
        return [f"{folder}: {error.message}"]
    found = []
    if not judged.is_of(digest):
        found.append(f"{folder}: the weights are not those that were judged")
    if not judged.has_auxiliary_files(carried):
        found.append(f"{folder}: config, tokenizer and other files are not those that were judged")
    return found

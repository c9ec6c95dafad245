"""Checks an evidence bundle: every digest, then the verdict computed again from it alone.

No store, no network, no server. What is found is told in words; only a signature (`signing.py`)
tells who made the bundle, since who can write all of it can forge all of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.bundle import (
    BUNDLE,
    RESOLVED,
    VERDICT,
    BundleVerdict,
    at_pointer,
)
from artifacts.bundled_evidence import BundledEvidence
from artifacts.judged_variant import JudgedVariant
from artifacts.manifest import (
    MANIFEST,
    NOT_OURS,
    SIGNATURE,
    Manifest,
    differences,
    read_manifest,
)
from pipeline.errors import CheckpointError, EvidenceError
from pipeline.verdict_check import Claims, VariantCheck, check_claims
from pipeline.weight_files import weights_digest


@dataclass(frozen=True)
class BundleCheck:
    """How a bundle was found.

    Args:
        run: that it was made in.
        recipe: of the variant that it is about.
        verdict: on that variant, as kept.
        override: why it was promoted though it did not pass.
        files: how many were held against their digests.
        weights_checked: whether it lay beside weights, which were checked with it.
        problems: what is wrong with files, and what does not fit together.
        variants: verdicts of all variants, computed again.
    """

    run: str
    recipe: str
    verdict: str
    override: str | None
    files: int
    weights_checked: bool
    problems: tuple[str, ...]
    variants: tuple[VariantCheck, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing at all was found wrong."""
        return not self.problems and not any(check.differences for check in self.variants)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            **vars(self),
            "problems": list(self.problems),
            "variants": [check.to_dict() for check in self.variants],
        }


def find_bundle(folder: Path) -> Path | None:
    """The bundle that a folder is or has in it; None where there is none."""
    for place in (folder / BUNDLE, folder):
        if (place / MANIFEST).is_file():
            return place
    return None


def check_bundle(folder: Path) -> BundleCheck:
    """Check the bundle in a weights folder with the weights, or a bundle's own folder alone.

    Raises:
        EvidenceError: there is no bundle, or it cannot be read as one.
    """
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            "there is no evidence bundle here",
            where=str(folder / BUNDLE),
            cure="name a folder that `prepare pull` made, or its prepare-evidence/",
        )
    manifest = read_manifest(bundle)
    verdict = read_verdict(bundle)
    has_weights = bundle != folder
    problems = differences(bundle, manifest.bundle, (MANIFEST,))
    if has_weights:
        problems += differences(folder, manifest.beside, (BUNDLE, SIGNATURE, *NOT_OURS))
    source = BundledEvidence(bundle, manifest, verdict.revisions)
    try:
        kept = verdict.variant.verdict
        variants = check_claims(Claims(verdict.variants, verdict.tried, verdict.judges), source)
        try:
            problems += misfits(bundle, manifest, verdict, source)
            if has_weights:
                problems += other_weights(folder, manifest, verdict, source)
        except EvidenceError as error:  # a record is gone or damaged, which the checks tell too
            problems.append(f"{error.where}: {error.what}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError(
            f"the records of the bundle cannot be understood: {type(error).__name__}: {error}",
            where=str(bundle),
            cure="it was changed, or another version of prepare wrote it: "
            f"{manifest.prepare_version}",
        ) from error
    return BundleCheck(
        run=verdict.run,
        recipe=verdict.recipe,
        verdict=kept,
        override=verdict.override,
        files=len(manifest.bundle) + (len(manifest.beside) if has_weights else 0),
        weights_checked=has_weights,
        problems=tuple(problems),
        variants=tuple(variants),
    )


def read_verdict(bundle: Path) -> BundleVerdict:
    """What a bundle says; raises EvidenceError where that is missing or damaged."""
    file = bundle / VERDICT
    try:
        return BundleVerdict.model_validate_json(file.read_bytes())
    except OSError as error:
        raise EvidenceError(
            f"the verdict cannot be read: {error.strerror}", where=str(file)
        ) from error
    except ValueError as error:
        raise EvidenceError(
            f"the verdict is damaged, or of a newer prepare: {error}", where=str(file)
        ) from error


def misfits(
    bundle: Path, manifest: Manifest, verdict: BundleVerdict, source: BundledEvidence
) -> list[str]:
    """What in the bundle contradicts the rest of it, though every digest may be right."""
    found = []
    if manifest.recipe != verdict.recipe:
        found.append(f"{MANIFEST} is about '{manifest.recipe}', {VERDICT} about '{verdict.recipe}'")
    if verdict.recipe not in verdict.judges:
        found.append(f"{VERDICT} names no stage 'judge' for '{verdict.recipe}'")
    if verdict.variant.verdict != "pass" and not verdict.override:
        found.append(
            f"the verdict on '{verdict.recipe}' is '{verdict.variant.verdict}', and no reason is "
            "given for promoting it all the same"
        )
    for name, part in read_resolved(bundle).items():
        place, _, pointer = str(part["from"]).partition("#")
        _, stage, key, _ = place.split("/")
        record = source.find(stage, key)
        if record is None:
            found.append(f"{RESOLVED}: {name}: {place} is missing")
        elif at_pointer(record.model_dump(mode="json"), pointer) != part["value"]:
            found.append(f"{RESOLVED}: {name} is not what {place} says")
    return found


def read_resolved(bundle: Path) -> dict[str, dict[str, Any]]:
    """The parts of resolved.json; raises EvidenceError where it is missing or damaged."""
    file = bundle / RESOLVED
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise EvidenceError("the resolved recipe cannot be read", where=str(file)) from error
    data.pop("schema_version")
    return dict(data)


def other_weights(
    folder: Path, manifest: Manifest, verdict: BundleVerdict, source: BundledEvidence
) -> list[str]:
    """Whether the weights beside are those that were judged, whatever the manifest says."""
    if verdict.recipe not in verdict.judges:
        return []
    judged = JudgedVariant.found(source.find, verdict.judges[verdict.recipe])
    listed = {each.path: each.sha256 for each in manifest.beside}
    try:
        digest = weights_digest(folder, lambda file: listed.get(file.name, ""))
    except CheckpointError as error:
        return [f"{folder}: {error.what}"]
    if digest == judged.verify.result["weights_digest"] == judged.quantize.result["weights_digest"]:
        return []
    return [f"{folder}: the weights are not those that were judged"]

"""Makes the folder to deploy: the weights, the model card, and the evidence bundle.

The weights are hard links to those of the stage `quantize` (copies on another file system), so they
take no additional space. A registry gets `output/`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from artifacts.deployable import Deployable
from artifacts.evidence.bundle import BundleContents, BundleVerdict, write_bundle
from artifacts.evidence.bundle_check import check_bundle
from artifacts.evidence.card import write_card
from artifacts.evidence.manifest import MANIFEST, Manifest
from artifacts.evidence.signing import fingerprint_of, sign_with_key
from artifacts.run_record import VariantReport, report_judged, report_unjudged
from artifacts.verdict_inputs import VerdictInputs, collect_stages
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import BUNDLE, digest_auxiliary_files, plain_files
from pipeline.core.digest import digest_file
from pipeline.core.errors import EvidenceError, UsageError
from pipeline.core.run_folders import RunFolders
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import Store
from pipeline.environments.definition import define
from pipeline.release.stages.evidence import (
    JUDGE_OF,
    EvidenceParameters,
    EvidenceResult,
    EvidenceRuntime,
)
from pipeline.stages import newest_revision
from pipeline.stages.context import StageContext

NO_ROOM_FOR_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
Context = StageContext[EvidenceParameters, EvidenceRuntime]


def run(context: Context) -> EvidenceResult:
    """Write the weights, the card and the bundle into `output/`.

    Raises:
        EvidenceError: a stage that the verdict depends on is missing, the weights have changed
            since, or a verdict does not follow from the evidence.
    """
    recipe = context.parameters.recipe
    find = context.store.find
    judged = VerdictInputs.load_by_key(find, context.spec.inputs[JUDGE_OF + recipe].key)
    records = tuple(collect_stages(find, list(context.spec.inputs.values())))
    verdict = verdict_of(context, records)
    output = context.output_folder()
    link_weights(context.input_folder("weights") / "output", output)
    deployable = judged.deployable(find)
    write_card(output, verdict, judged, deployable, judged.evaluations(find))
    manifest = write_bundle(
        output,
        BundleContents(
            verdict=verdict,
            records=records,
            stage_folders={r.key: context.store.stage_folder(r.stage, r.key) for r in records},
            locks=locks_of(deployable),
            logs=server_logs(context.store, judged),
        ),
    )
    check_weights(output, manifest, judged)
    check_verdicts(output / BUNDLE, context.runtime.run)
    sign(output, context)
    return EvidenceResult(
        recipe=recipe,
        verdict=verdict.variant.verdict,
        override=verdict.override,
        weights_digest=judged.quantize.result.weights_digest,
        manifest_digest=digest_file(output / BUNDLE / MANIFEST),
        files=len(manifest.evidence_files) + len(manifest.model_files),
        bundle_bytes=sum(each.size for each in manifest.evidence_files),
        signer=context.parameters.signer,
    )


def sign(output: Path, context: Context) -> None:
    """Sign the folder, if a signer is given.

    Raises:
        UsageError: the key is not the signer's, or cannot be used.
    """
    signer, private_key = context.parameters.signer, context.runtime.private_key
    if signer is None:
        return
    if private_key is None or fingerprint_of(private_key) != signer:
        raise UsageError(
            "the key that was to sign is gone, or another key has taken its place",
            where=str(private_key),
            hint="run the command again",
        )
    sign_with_key(output, private_key)


def verdict_of(context: Context, records: tuple[StageRecord, ...]) -> BundleVerdict:
    """Return the verdicts on all variants of the run."""
    parameters = context.parameters
    judges = {
        role.removeprefix(JUDGE_OF): reference.key
        for role, reference in context.spec.inputs.items()
        if role.startswith(JUDGE_OF)
    }
    reports = [report_of(context, recipe, judges) for recipe in parameters.attempted]
    return BundleVerdict(
        run=context.runtime.run,
        recipe=parameters.recipe,
        override=parameters.override,
        registered_name=parameters.name,
        profile=parameters.profile,
        policy=parameters.policy,
        command=context.runtime.command,
        source=parameters.source,
        attempted=tuple(parameters.attempted),
        judges=judges,
        variants=tuple(reports),
        revisions=revisions_of(records),
    )


def revisions_of(records: tuple[StageRecord, ...]) -> dict[str, int]:
    """Return the revision of each stage's code, after checking that it gives the records' keys.

    Raises:
        EvidenceError: a record's parameters do not give its key.
    """
    found: dict[str, int] = {}
    for record in records:
        revision = newest_revision(record.stage)
        if stage_key(record.stage, revision, record.parameters, record.inputs) != record.key:
            raise EvidenceError(
                "a stage's parameters do not give its key: they were changed afterwards",
                where=f"stages/{record.stage}/{record.key}",
                hint="delete that folder and run the model again",
            )
        found[record.stage] = revision
    return dict(sorted(found.items()))


def report_of(context: Context, recipe: str, judges: dict[str, str]) -> VariantReport:
    """Return a variant's own verdict; one without gates has none."""
    if recipe not in judges:
        outcome = context.parameters.unjudged.get(recipe, "skipped")
        return report_unjudged(recipe, outcome, "has no verdict by gates", None)
    judged = VerdictInputs.load_by_key(context.store.find, judges[recipe])
    return report_judged(recipe, judged.quantize.result.weights_bytes, judged.judge.result)


def link_weights(source: Path, output: Path) -> None:
    """Link every file of the variant's checkpoint, or copy it if links are not possible."""
    for path, file in plain_files(source):
        place = output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError as error:
            if error.errno not in NO_ROOM_FOR_LINKS:
                raise
            shutil.copyfile(file, place)


def check_weights(output: Path, manifest: Manifest, judged: VerdictInputs) -> None:
    """Raise EvidenceError if weights, or files next to them, differ from the judged ones."""
    digests = {each.path: each.sha256 for each in manifest.model_files}
    digest = weights_digest(output, lambda file: digests[file.name])
    for are_those, words in (
        (judged.is_of(digest), "weights"),
        (
            judged.has_auxiliary_files(digest_auxiliary_files(output)),
            "config, tokenizer and other files",
        ),
    ):
        if not are_those:
            raise EvidenceError(
                f"the {words} are not those that were judged: a user changed them since",
                where=f"stages/quantize/{judged.quantize.record.key}/output",
                hint="delete that stage's folder and run the model again",
            )


def check_verdicts(bundle: Path, run: str) -> None:
    """Compute each verdict of a bundle again, since records may have been changed in the store.

    Raises:
        EvidenceError: a verdict differs, or the parts do not match.
    """
    check = check_bundle(bundle)
    faults = [*check.problems, *(each for one in check.variants for each in one.differences)]
    if faults:
        raise EvidenceError(
            f"the evidence does not give the verdict of the record: {faults[0]}",
            where=str(bundle),
            hint=f"`prepare verify {run}` names every difference; run the model again",
        )


def locks_of(deployable: Deployable) -> dict[str, str]:
    """Return the lock of each environment that was built from the present one, by file name."""
    found = {}
    for name, identity in deployable.environments.items():
        definition = define(name, deployable.accelerator)
        if definition.identity == identity:
            found[definition.lock.name] = definition.lock.read_text(encoding="utf-8")
    return found


def server_logs(store: Store, judged: VerdictInputs) -> dict[str, Path]:
    """Return the kept server logs of every run that asked baseline or variant."""
    baseline = judged.baseline_coherence.record.key
    return {
        f"{run.name}.{log.name}": log
        for run in RunFolders(store).all()
        for key in (judged.coherence.record.key, baseline)
        for variant in variants_started(run, key)
        for log in sorted(run.iterdir())
        if re.fullmatch(rf"server\.{re.escape(variant)}(\.\d+)?\.log", log.name)
    }


def variants_started(run: Path, key: str) -> Iterator[str]:
    """Yield the variants whose coherence this run checked by the stage of that key.

    The log of a spec that another version of prepare wrote is left out.
    """
    for file in run.glob(f"stages/*.coherence.{key[:8]}.json"):
        try:
            spec = StageSpec.model_validate_json(file.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if spec.key == key:
            yield spec.variant

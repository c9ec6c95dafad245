"""Checks recorded verdicts offline, in a store or an open bundle.

An author can forge a bundle; only a signature identifies the author.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.evidence.bundle import VERDICT, BundleVerdict, open_bundle
from artifacts.evidence.differences import (
    CONTRADICTIONS,
    UNREADABLE,
    VariantCheck,
    find_differing_values,
)
from artifacts.evidence.manifest import MANIFEST, Manifest, find_changes, read_manifest
from artifacts.evidence.recheck_check import find_other_recheck
from artifacts.evidence.recompute import find_evidence, judge_again, read_stages
from artifacts.evidence.tuning_check import check_tuning
from artifacts.run_record import NOT_PREFERRED, RunReport, VariantReport, report_judged
from pipeline.stages.adopt import AdoptParameters
from pipeline.stages.attempts import AttemptLedger, Trial
from pipeline.stages.consistency import ASKING, find_served_otherwise
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.evidence import Evidence
from pipeline.stages.verdict import JUDGE, policy_digest
from prepare.digest import digest_file
from prepare.errors import (
    CheckpointError,
    EvidenceError,
    StoreError,
    UsageError,
    raise_as,
)
from prepare.own_command import own_command
from prepare.store import Store
from prepare.untrusted import read_record
from recipes.checkpoints.weight_files import (
    ARCHIVE,
    BUNDLE,
    SIGNATURE,
    digest_auxiliary_files,
    weights_digest,
)

ADDED_BY_PROMOTION = ("promoted", "registry_version")


@dataclass(frozen=True)
class BundleCheck:
    """Result of a bundle check."""

    verdict: BundleVerdict
    files: int
    weights_checked: bool
    problems: tuple[str, ...]  # changed files, and contradictions
    variants: tuple[VariantCheck, ...]
    inputs: Evidence | None = None  # None if they are incomplete, or in a copy without answers
    answers_withheld: bool = False  # the copy lacks its stages, so only digests were checked

    @property
    def is_sound(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> list[str]:
        return [
            *self.problems,
            *(difference for check in self.variants for difference in check.differences),
        ]

    @property
    def made_by(self) -> str:
        return self.inputs.made_by if self.inputs is not None else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {
            "same": self.is_sound,
            "run": self.verdict.run,
            "recipe": self.verdict.recipe,
            "verdict": self.verdict.variant.verdict,
            "override": self.verdict.override,
            "files": self.files,
            "weights_checked": self.weights_checked,
            "problems": self.problems,
            "variants": [asdict(check) for check in self.variants],
            "made_by": self.made_by,
            "answers_withheld": self.answers_withheld,
        }


def check_run(report: RunReport, store: Store) -> list[VariantCheck]:
    """Check every variant that has or should have a verdict."""
    if report.tuning is not None:
        return [check_tuning(report, store)]
    checks, _ = _check_variants(report, store, is_bundle=False)
    if not checks:
        raise UsageError(
            f"no variant of run {report.run} was judged, so there is no verdict to compute again",
            where=f"{store.root}/runs/{report.run}",
            hint=f"`{own_command('runs')}` names the runs and their verdicts",
        )
    missing = find_missing(report) if report.status == "finished" else []
    missing += find_other_recheck(report, store)
    return [
        replace(
            check,
            differences=(
                *check.differences,
                *_find_uncounted(report.judges.get(check.recipe), store),
                *missing,
            ),
        )
        for check in checks
    ]


def find_missing(report: RunReport) -> list[str]:
    """Return tried variants without a recorded verdict."""
    names = {variant.recipe for variant in report.variants}
    return [
        f"'{recipe}' was tried with it, and the run's record has no verdict on that"
        for recipe in report.resolved.recipes
        if recipe not in names
    ]


def find_bundle(folder: Path) -> Path | None:
    """Return the bundle that a folder is or contains, never by a link."""
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


def read_verdict(bundle: Path) -> BundleVerdict:
    """Return a bundle's verdict."""
    file = bundle / VERDICT
    with raise_as(
        EvidenceError,
        "the verdict is missing, damaged, or of a newer prepare",
        file,
        errors=(OSError, ValueError),
    ):
        return read_record(file, BundleVerdict)


def check_bundle(folder: Path, digest: Callable[[Path], str] = digest_file) -> BundleCheck:
    """Check a bundle with the weights next to it, or alone.

    `digest` reads a weights file.
    """
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            "there is no evidence bundle here",
            where=str(folder / BUNDLE),
            hint="name a folder that `prepare pull` made, or its prepare-evidence/",
        )
    manifest = read_manifest(bundle)
    has_weights = bundle != folder
    problems = find_changes(bundle, manifest, has_weights=has_weights, digest=digest)
    # After these checks, each listed file is a plain one, and no endless pipe.
    verdict = read_verdict(bundle)
    if has_weights and verdict.signer and not (folder / SIGNATURE).is_file():
        problems.append(f"{folder / SIGNATURE}: the signature is missing")
    problems += find_contradictions(manifest, verdict)
    withheld = not (bundle / Path(ARCHIVE).name).exists()
    files = len(manifest.evidence_files) - withheld + len(manifest.model_files) * has_weights
    if withheld:
        judged = [variant for variant in verdict.variants if variant.recipe in verdict.judges]
        unknown = tuple(
            VariantCheck(variant.recipe, variant.verdict, None, 0, ()) for variant in judged
        )
        return BundleCheck(
            verdict, files, has_weights, (*problems,), unknown, answers_withheld=True
        )
    inputs = None
    try:
        with open_bundle(bundle) as (store, stages):
            variants, evidence = _check_variants(verdict, store, is_bundle=True)
            if (
                len({policy_digest(of_variant.judge.record) for of_variant in evidence.values()})
                > 1
            ):
                problems.append(f"{VERDICT}: the variants were judged by different policies")
            used = {place for of_variant in evidence.values() for place in of_variant.stages}
            unused = sorted(stages - used)
            problems += [f"{place}: no verdict depends on this stage" for place in unused]
            own = evidence.get(verdict.recipe)
            try:
                if own is not None:
                    own.read_variant()
                    inputs = own
                    problems += _find_other_subject(verdict, inputs)
                    if has_weights:
                        problems += _find_other_weights(folder, manifest, inputs)
            except (EvidenceError, StoreError) as error:
                problems.append(f"{error.where}: {error.message}")
    except CONTRADICTIONS as error:
        raise EvidenceError(
            f"the records of the bundle cannot be understood: {type(error).__name__}: {error}",
            where=str(bundle),
            hint="it was changed, or another version of prepare wrote it: "
            f"{manifest.prepare_version}",
        ) from error
    return BundleCheck(verdict, files, has_weights, (*problems,), (*variants,), inputs)


def find_contradictions(manifest: Manifest, verdict: BundleVerdict) -> list[str]:
    """Return contradictions in and between manifest and verdict."""
    names = [variant.recipe for variant in verdict.variants]
    judges = verdict.judges
    recipe = verdict.recipe
    unjudged = [variant for variant in verdict.variants if variant.recipe not in judges]
    faults = {
        f"{MANIFEST} is about '{manifest.recipe}', not '{recipe}'": manifest.recipe != recipe,
        f"{', '.join(verdict.attempted) or 'nothing'} was tried, and there are verdicts on "
        f"{', '.join(names) or 'nothing'}": sorted(names) != sorted(verdict.attempted),
        "two variants have the same stage 'judge'": len({*judges.values()}) != len(judges),
        "a variant has gates, and no stage 'judge'": any(
            variant.p_value is not None or variant.gates for variant in unjudged
        ),
        f"no stage 'judge' is named for '{recipe}'": recipe not in judges,
        f"the verdict on '{recipe}' is '{verdict.variant.verdict}', and no reason is given for "
        "promoting it anyway": verdict.variant.verdict != "pass" and not verdict.override,
    }
    return [f"{VERDICT}: {words}" for words, is_fault in faults.items() if is_fault]


def _find_other_subject(verdict: BundleVerdict, inputs: Evidence) -> Iterator[str]:
    if verdict.source.digest != inputs.sanity.parameters.checkpoint:
        yield f"{VERDICT}: the source is not the checkpoint that was the baseline"
    profile = inputs.judge.parameters.profile
    for side, sanity in (("baseline", inputs.baseline_sanity), ("candidate", inputs.sanity)):
        yield from find_served_otherwise("sanity", side, sanity.parameters, profile)


def _find_other_weights(folder: Path, manifest: Manifest, inputs: Evidence) -> Iterator[str]:
    listed = {entry.path: entry.sha256 for entry in manifest.model_files}
    try:
        weights = weights_digest(folder, lambda file: listed.get(file.name, ""))
        if not _are_judged(weights, digest_auxiliary_files(folder), inputs):
            yield f"{folder}: weights or other files are not those that were judged"
    except CheckpointError as error:
        yield f"{folder}: {error.message}"


def _are_judged(weights: str, auxiliary_files: str, inputs: Evidence) -> bool:
    """Return whether weights and the files next to them have the judged digests.

    Adoption checks linked weights' files.
    """
    checked = inputs.checked_weights.result
    made = inputs.weights
    linked = isinstance(made.parameters, AdoptParameters) and not made.parameters.copied
    return (weights == checked.weights_digest == made.result.weights_digest) and (
        linked or checked.auxiliary_files_digest == auxiliary_files
    )


def _check_variants(
    told: RunReport | BundleVerdict, store: Store, *, is_bundle: bool
) -> tuple[list[VariantCheck], dict[str, Evidence]]:
    """Return a check of each variant with a verdict, and the evidence by recipe."""
    checks = []
    evidence = {}
    for variant in told.variants:
        key = told.judges.get(variant.recipe)
        if key is None and variant.verdict not in ("pass", "undecided"):
            continue
        problems: list[str] = []
        of_variant = find_evidence(key, store, problems)
        computed = None
        answers = 0
        if of_variant is not None:
            evidence[variant.recipe] = of_variant
            try:
                is_complete = read_stages(of_variant, problems, is_bundle=is_bundle)
                problems += _find_other_trial(of_variant, variant, told.attempted)
                if is_complete:
                    computed = judge_again(of_variant, problems)
                answers = _count_answers(of_variant)
            except UNREADABLE as error:
                problems.append(f"the verdict cannot be computed: {error}")
        if computed is not None:
            again = report_judged(variant.recipe, variant.weights_bytes, computed)
            problems += find_differing(variant, again, is_promoted=not is_bundle)
        verdict = computed.verdict if computed is not None else None
        checks.append(
            VariantCheck(variant.recipe, variant.verdict, verdict, answers, tuple(problems))
        )
    trials = [of_variant.judge.parameters.trial for of_variant in evidence.values()]
    computed_verdicts = {check.recipe: check.computed for check in checks}
    checks = [
        replace(
            check,
            differences=(
                *check.differences,
                *_find_skipped_rung(evidence.get(check.recipe), check.recipe, computed_verdicts),
                *_find_mixed_trials(trials),
            ),
        )
        for check in checks
    ]
    return checks, evidence


def _find_skipped_rung(
    evidence: Evidence | None, recipe: str, verdicts: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield the variant of a descent that had to pass before this one was judged, and did not."""
    if evidence is None:
        return
    for before in evidence.judge.parameters.trial.before(recipe):
        if verdicts.get(before) != "pass":
            yield f"'{before}' comes before it and did not pass, so this verdict has no error rate"


def _find_mixed_trials(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield that verdicts of several attempts were put together: each has another error rate."""
    if any(trial != trials[0] for trial in trials):
        yield "the variants were judged in different trials"


def _find_other_trial(
    evidence: Evidence, variant: VariantReport, attempted: Collection[str]
) -> Iterator[str]:
    parameters = evidence.judge.parameters
    tried = sorted(attempted)
    if parameters.recipe not in (None, variant.recipe):
        yield f"its stage 'judge' is on another variant, {parameters.recipe!r}"
    if sorted(parameters.trial.variants) != tried:
        yield (
            f"its trial is of {', '.join(sorted(parameters.trial.variants))}, "
            f"and {', '.join(tried)} are named"
        )


def _count_answers(evidence: Evidence) -> int:
    asked = [record for record in evidence.stages.values() if record.stage in ASKING]
    return sum(EVALUATE.result_of(record).n for record in asked)


def _find_uncounted(key: str | None, store: Store) -> Iterator[str]:
    """Yield attempts that the store's ledger lacks."""
    judge = store.find(JUDGE.name, key) if key is not None else None
    if judge is None:
        return
    trial = JUDGE.parameters_of(judge).trial
    number = JUDGE.result_of(judge).history.attempt
    attempts = AttemptLedger(store).attempts(trial.baseline)
    if not any(attempt.number == number and trial.is_of(attempt.trial) for attempt in attempts):
        yield f"attempt {number} against its baseline is not the one in the store's ledger"


def find_differing(kept: VariantReport, computed: VariantReport, *, is_promoted: bool) -> list[str]:
    """Return differing fields by path; `is_promoted`: a promotion may have added some to `kept`."""
    left_out = {"weights_bytes", *(ADDED_BY_PROMOTION if is_promoted else ())}
    ours = kept.model_dump(exclude=left_out)
    theirs = computed.model_dump(exclude=left_out)
    if is_promoted and ours["reason"].startswith(theirs["reason"] + NOT_PREFERRED):
        ours["reason"] = theirs["reason"]
    return find_differing_values("", ours, theirs)

"""Checks recorded verdicts offline, in a store or an open bundle.

An author can forge a bundle; only a signature identifies the author.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.evidence.bundle import VERDICT, BundleVerdict, open_bundle
from artifacts.evidence.manifest import MANIFEST, Manifest, find_changes, read_manifest
from artifacts.evidence.recorded_loads import find_draw_mismatches, judge_confirmed
from artifacts.run_record import NOT_PREFERRED, RunReport, VariantReport, report_judged
from eval_gates.speed.load_run import LOADS
from eval_gates.speed.rules import build_rule
from pipeline.stages import newest_revision
from pipeline.stages.adopt import AdoptParameters
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.consistency import ASKING, find_served_otherwise
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.evidence import FILES, Evidence, place_of
from pipeline.stages.judge import judge_evidence
from pipeline.stages.packed import open_archive
from pipeline.stages.recall import RECALL
from pipeline.stages.recorded import ARCHIVE as RECORDED_ARCHIVE
from pipeline.stages.recorded import (
    RECORDED,
    RecordedParameters,
    RecordedResult,
    compared_policy,
    facts_of,
)
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JUDGE, JudgeResult, policy_digest
from prepare.digest import digest_file, digest_json
from prepare.errors import (
    CheckpointError,
    EvidenceError,
    PrepareError,
    StoreError,
    UsageError,
    raise_as,
)
from prepare.own_command import own_command
from prepare.stage import StageRecord, StageReference, stage_key
from prepare.store import Store
from prepare.untrusted import read_record
from recipes.checkpoints.weight_files import (
    ARCHIVE,
    BUNDLE,
    SIGNATURE,
    digest_auxiliary_files,
    weights_digest,
)
from recipes.workload import read_pinned

# Raised by records that do not fit together.
CONTRADICTIONS = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError)
UNREADABLE = (*CONTRADICTIONS, OSError, PrepareError)
MISSING = " is missing"
ADDED_BY_PROMOTION = ("promoted", "registry_version")
# Sums of floating-point numbers differ in the last digits on other machines.
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class VariantCheck:
    """Recorded and recomputed verdicts of a variant."""

    recipe: str
    kept: str
    computed: str | None
    answers: int
    differences: tuple[str, ...]


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
    checked = inputs.check_weights.result
    made = inputs.quantize
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
        of_variant = _find_evidence(key, store, problems)
        computed = None
        answers = 0
        if of_variant is not None:
            evidence[variant.recipe] = of_variant
            try:
                is_complete = _read_stages(of_variant, problems, is_bundle=is_bundle)
                problems += _find_other_trial(of_variant, variant, told.attempted)
                if is_complete:
                    computed = _judge_again(of_variant, problems)
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
    computed_verdicts = {check.recipe: check.computed for check in checks}
    checks = [
        replace(
            check,
            differences=(
                *check.differences,
                *_find_skipped_rung(evidence.get(check.recipe), check.recipe, computed_verdicts),
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


def _find_evidence(key: str | None, store: Store, problems: list[str]) -> Evidence | None:
    """Return a verdict's evidence; None if its stage `judge` is missing or damaged."""
    if key is None:
        problems.append("the run names no stage 'judge' for it: its evidence is missing")
        return None
    place = place_of(StageReference(stage=JUDGE.name, key=key))
    try:
        return Evidence.of_verdict(store, key)
    except EvidenceError:
        problems.append(f"judge: {place} is missing")
    except PrepareError as error:
        problems.append(f"judge: {place}: {error.message}; its evidence is missing")
    except UNREADABLE as error:
        problems.append(f"the verdict cannot be computed: {error}")
    return None


def _read_stages(evidence: Evidence, problems: list[str], *, is_bundle: bool) -> bool:
    """Check all stages of a verdict; return whether it can be judged again.

    Those of a bundle are complete; a store of runs may lack what the inputs were made from.
    """
    is_complete = True
    seen = set[str]()
    judge = evidence.judge.record.as_reference()
    pending: list[tuple[str, StageReference, str | None, int]] = [("judge", judge, None, 0)]
    for role, reference, digest, depth in pending:
        place = place_of(reference)
        is_needed = depth < 2 or is_bundle
        try:
            record = evidence.find_at(reference)
            fault = f"{role}: {place} is missing" if record is None and is_needed else ""
        except PrepareError as error:
            record = None
            fault = f"{role}: {place}: {error.message}; its evidence is missing"
        if fault:
            problems.append(fault)
            is_complete = is_complete and not is_needed
        if record is None:
            continue
        if digest is not None and digest_json(record.result) != digest:
            problems.append(f"{role}: {place}: its result is not the one that was used")
        if place in seen:
            continue
        seen.add(place)
        if key_of(record) != record.key:
            problems.append(
                f"{place}: its parameters do not give its key, so they were changed afterwards "
                "(or another version of prepare wrote them)"
            )
        if fault := _find_file_fault(evidence, record):
            problems.append(f"{role}: {place}/{fault}")
            is_complete = is_complete and not fault.endswith(MISSING)
        for name, source in record.inputs.items():
            path = f"{role}'s {name}" if depth else name
            pending.append((path, source, record.input_digests.get(name, ""), depth + 1))
    return is_complete


def _find_file_fault(evidence: Evidence, record: StageRecord) -> str:
    """Return the name of the record's file if it is missing or was changed, and which; or ''."""
    if record.stage not in FILES:
        return ""
    name, digest_of = FILES[record.stage]
    digest = digest_of(record)
    file = evidence.file_at(record, name)
    if not file.is_file():
        return f"{name}{MISSING}"
    if digest_file(file) != digest:
        return f"{name}: the file was changed since (its digest is another)"
    return ""


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


def check_archive(
    store: Store, parameters: RecordedParameters, where: str
) -> tuple[Evidence, RecordedResult]:
    """Compute a recorded arm's own verdict again; return its evidence and facts.

    EvidenceError: it is incomplete, was changed, or is of another verdict.
    """
    problems: list[str] = []
    evidence = _find_evidence(parameters.judge, store, problems)
    facts = None
    try:
        if evidence is not None and _read_stages(evidence, problems, is_bundle=False):
            _judge_again(evidence, problems)
            for name in evidence.judge.parameters.policy.suites:
                evidence.questions(f"questions.{name}")
            facts = facts_of(parameters, store)
    except UNREADABLE as error:
        problems.append(f"the verdict cannot be computed: {error}")
    if evidence is None or facts is None or problems:
        raise EvidenceError(
            f"the recorded answers cannot be used: {next(iter(problems), 'a part is missing')}",
            where=where,
            hint="the evidence was cut or changed: get it again with `prepare pull`, or name "
            "another version or run",
        )
    return evidence, facts


def _find_other_record(evidence: Evidence) -> Iterator[str]:
    """Yield where a recorded arm is not what its evidence says."""
    if RECORDED.name not in evidence.references:
        return
    record = evidence.typed(RECORDED, RECORDED.name)
    parameters = record.parameters
    try:
        with open_archive(evidence.file(RECORDED.name, RECORDED_ARCHIVE)) as store:
            recorded, facts = check_archive(store, parameters, parameters.origin)
    except PrepareError as error:
        yield f"{RECORDED.name}: {error.message}"
        return
    if facts != record.result:
        yield f"{RECORDED.name}: its facts are not those of its evidence"
    policy = compared_policy(recorded.judge.parameters.policy, parameters.left_out)
    if policy.model_dump() != evidence.judge.parameters.policy.model_dump():
        yield f"{RECORDED.name}: the policy is not that of its evidence"
    for name in policy.suites:
        asked = recorded.record(f"{parameters.side}.{name}")
        recalled = evidence.typed(RECALL, f"baseline.{name}")
        if (recalled.parameters.evaluate, recalled.record.result) != (asked.key, asked.result):
            yield f"baseline.{name}: its answers are not those of the recorded arm's evidence"
        if recorded.references[f"questions.{name}"] != evidence.references[f"questions.{name}"]:
            yield f"questions.{name}: they are not those of the recorded arm's evidence"


def _judge_again(evidence: Evidence, problems: list[str]) -> JudgeResult:
    for role, measured in evidence.speed.items():
        problems += find_draw_mismatches(role, measured.record, evidence.loads(role))
    kept = evidence.judge
    again = judge_evidence(kept.parameters, evidence, kept.result.history)
    problems += _find_other_record(evidence)
    differing = find_differing_values("", kept.result.model_dump(), again.model_dump())
    problems += [f"its stage 'judge': {words}" for words in differing]
    return again


def _count_answers(evidence: Evidence) -> int:
    asked = [record for record in evidence.stages.values() if record.stage in ASKING]
    return sum(EVALUATE.result_of(record).n for record in asked)


def key_of(record: StageRecord) -> str:
    """Return the key computed from parameters and inputs."""
    return stage_key(record.stage, newest_revision(record.stage), record.parameters, record.inputs)


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


def check_tuning(report: RunReport, store: Store) -> VariantCheck:
    """Check a tuning's confirmation; the screening has no gate."""
    tuning = report.tuning
    if tuning is None or tuning.winner is None or tuning.confirmation is None:
        raise UsageError(
            f"run {report.run} measured no winner, so there is nothing to compute",
            where=f"run {report.run}",
            hint=f"`{own_command('runs', 'latest')}` has the screening",
        )
    key = tuning.stage or ""
    computed = None
    place = place_of(StageReference(stage=SPEED.name, key=key))
    differences: list[str] = []
    try:
        record = store.find(SPEED.name, key)
        if record is None:
            raise LookupError(f"{place} is missing")
        inputs = Evidence(store, {"speed": record.as_reference()})
        loads = inputs.loads("speed")
        asked = SPEED.parameters_of(record)
        file = store.stage_folder(SPEED.name, key) / LOADS
        (gate,) = tuning.speed.gates
        workload = read_pinned(asked.workload)
        level = tuning.trial.level if tuning.trial is not None else tuning.alpha
        served = tuning.served
        rule = build_rule(gate, level, served.accelerator if served else None, workload, served)
        for is_right, fault in (
            (key_of(record) == key, "its parameters do not give its key"),
            (
                digest_file(file) == SPEED.result_of(record).loads_digest,
                f"{LOADS}: the timings are not those that were measured",
            ),
            (asked.rule == rule, "measured by another rule than the tuning's"),
            (
                asked.sides["baseline"].serving.engine_arguments == tuning.engine_defaults,
                "its baseline is not that of this run",
            ),
            (
                tuning.trial is not None and tuning.trial.alpha == tuning.alpha,
                "its trial is not known, or has another error rate",
            ),
        ):
            if not is_right:
                differences.append(f"{place}: {fault}")
        differences += find_draw_mismatches(place, record, loads)
        computed = judge_confirmed(record, loads)
        kept = tuning.confirmation.model_dump()
        differences += find_differing_values("", kept, computed.model_dump())
        if tuning.verdict != computed.verdict:
            differences.append(f"verdict: kept {tuning.verdict}, computed {computed.verdict}")
    except UNREADABLE as error:
        differences.append(f"the verdict cannot be computed: {error}")
    verdict = computed.verdict if computed is not None else None
    return VariantCheck(tuning.winner, tuning.verdict or "none", verdict, 0, tuple(differences))


def find_differing(kept: VariantReport, computed: VariantReport, *, is_promoted: bool) -> list[str]:
    """Return differing fields by path; `is_promoted`: a promotion may have added some to `kept`."""
    left_out = {"weights_bytes", *(ADDED_BY_PROMOTION if is_promoted else ())}
    ours = kept.model_dump(exclude=left_out)
    theirs = computed.model_dump(exclude=left_out)
    if is_promoted and ours["reason"].startswith(theirs["reason"] + NOT_PREFERRED):
        ours["reason"] = theirs["reason"]
    return find_differing_values("", ours, theirs)


def find_differing_values(path: str, kept: Any, computed: Any) -> list[str]:
    """Return the differing paths below `path`."""
    if isinstance(kept, dict) and isinstance(computed, dict):
        return [
            line
            for name in sorted(kept.keys() | computed.keys())
            for line in find_differing_values(f"{path}.{name}", kept.get(name), computed.get(name))
        ]
    if isinstance(kept, list | tuple) and isinstance(computed, list | tuple):
        if len(kept) != len(computed):
            return [f"{path[1:]}: kept {len(kept)} of them, computed {len(computed)}"]
        return [
            line
            for number, (ours, theirs) in enumerate(zip(kept, computed, strict=True))
            for line in find_differing_values(f"{path}[{number}]", ours, theirs)
        ]
    if isinstance(kept, float) and isinstance(computed, float):
        same = math.isclose(kept, computed, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    else:
        same = kept == computed
    return [] if same else [f"{path[1:]}: kept {kept!r}, computed {computed!r}"]

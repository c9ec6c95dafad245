"""Checks recorded verdicts offline, in a store that is only read; an open bundle is one.

Every record gives its key and every file its digest; `judge` runs again, and its result is compared
with the recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.evidence.load_log_check import find_draw_mismatches
from artifacts.multiple_testing import NOT_PREFERRED
from artifacts.run_record import RunReport, VariantReport, report_judged
from eval_gates.answer_log import ANSWERS, QUESTIONS
from eval_gates.speed.gate_rule import build_rule
from eval_gates.speed.load_run import LOADS, LoadRun
from eval_gates.speed.report import SpeedGateReport, decide_speed_gate
from pipeline.core.digest import digest_file, digest_json
from pipeline.core.errors import PrepareError, UsageError
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord, StageReference
from pipeline.core.store import Store
from pipeline.stages import newest_revision
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JUDGE, JudgeResult
from pipeline.stages.judge.verdict import StageInputs, judge_evidence
from pipeline.stages.questions import QUESTIONS as ASKED
from pipeline.stages.speed import SPEED
from recipes.workload import read_pinned

# What records raise that do not fit together.
UNREADABLE = (ValueError, LookupError, ArithmeticError, TypeError, OSError, PrepareError)
# The promotion says more in these, and attribution describes: no verdict depends on them.
NOT_OF_THE_VERDICT = ("promoted", "registry_version", "weights_bytes", "ablation")
# Sums of floating-point numbers may differ in the last digits on another machine.
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class VariantCheck:
    """One variant's kept and recomputed verdicts, and all differences."""

    recipe: str
    kept: str
    computed: str | None
    answers: int
    differences: tuple[str, ...]


@dataclass(frozen=True)
class RecordedVerdicts:
    """Recorded verdicts on variants that were tried together.

    Attributes:
        tried: recipes; one without a verdict counts, too.
        judges: key of the judge stage, by recipe; others have no verdict by gates.
    """

    variants: tuple[VariantReport, ...]
    tried: tuple[str, ...]
    judges: Mapping[str, str]


@dataclass(frozen=True)
class Evidence:
    """Stages to read.

    Attributes:
        bundle: that the store was unpacked from; None for a store of runs, in which stages that
            answers depend on may have been deleted.
        has_answers: whether the files of stages are there.
    """

    store: Store
    bundle: Path | None = None
    has_answers: bool = True

    def place(self, stage: str, key: str) -> str:
        """Location of the stage, for messages."""
        if self.bundle is not None:
            return f"{self.bundle.name}: stages/{stage}/{key}"
        return str(self.store.stage_folder(stage, key))


def check_run(report: RunReport, store: Store) -> list[VariantCheck]:
    """Check every variant of a run that has or should have a verdict.

    Raises:
        UsageError: gates judged no variant of the run.
    """
    if report.tuning is not None:
        return [check_tuning(report, Evidence(store))]
    claims = claims_of(report)
    checks = check_claims(claims, Evidence(store))
    if not checks:
        raise UsageError(
            f"no variant of run {report.run} was judged, so there is no verdict to compute again",
            where=f"{store.root}/runs/{report.run}",
            hint="`prepare runs list` names the runs and their verdicts",
        )
    missing = find_missing(report) if report.status == "finished" else []
    return [
        replace(
            check,
            differences=(
                *check.differences,
                *_find_uncounted(claims, check.recipe, store),
                *missing,
            ),
        )
        for check in checks
    ]


def find_missing(report: RunReport) -> list[str]:
    """Return tried variants without a verdict in the run's record."""
    names = {variant.recipe for variant in report.variants}
    return [
        f"'{recipe}' was tried with it, and the run's record has no verdict on that"
        for recipe in report.options.recipes or ()
        if recipe not in names
    ]


def claims_of(report: RunReport) -> RecordedVerdicts:
    """Return the verdicts in a run's record."""
    # A recheck counts all that were tried when the verdict was made, and measures one of them.
    tried = report.options.attempted or report.options.recipes or ()
    return RecordedVerdicts(
        variants=tuple(report.variants),
        tried=tuple(dict.fromkeys([*tried, *(variant.recipe for variant in report.variants)])),
        judges={
            stage.variant: str(stage.key)
            for stage in report.stages
            if stage.stage == "judge" and stage.status != "failed"
        },
    )


def check_claims(claims: RecordedVerdicts, evidence: Evidence) -> list[VariantCheck]:
    """Check every variant that has or needs a judge stage."""
    return [
        _VariantEvidence(claims, variant, evidence).check()
        for variant in claims.variants
        if variant.recipe in claims.judges or variant.verdict in ("pass", "undecided")
    ]


class _VariantEvidence:
    """Evidence of one variant's verdict."""

    def __init__(
        self, claims: RecordedVerdicts, variant: VariantReport, evidence: Evidence
    ) -> None:
        self._claims, self._variant, self._evidence = claims, variant, evidence
        self._checked: set[str] = set()
        self._problems: list[str] = []
        self._has_gap = False
        self._answers = 0

    def check(self) -> VariantCheck:
        variant, computed = self._variant, None
        key = self._claims.judges.get(variant.recipe)
        if key is None:
            self._miss("the run names no stage 'judge' for it: its evidence is missing")
        else:
            judge = self._find("judge", StageReference(stage=JUDGE.name, key=key))
            if judge is not None:
                try:
                    self._check_judge(judge)
                    computed = self._judge_again(judge)
                except UNREADABLE as error:
                    self._problems.append(f"the verdict cannot be computed: {error}")
        if computed is not None:
            again = report_judged(variant.recipe, variant.weights_bytes, computed)
            self._problems += find_differing(variant, again)
        return VariantCheck(
            recipe=variant.recipe,
            kept=variant.verdict,
            computed=computed.verdict if computed is not None else None,
            answers=self._answers,
            differences=tuple(self._problems),
        )

    def _check_judge(self, judge: StageRecord) -> None:
        self._check_record(judge)
        parameters, tried = JUDGE.parameters_of(judge), self._claims.tried
        if parameters.recipe not in (None, self._variant.recipe):
            self._problems.append(f"its stage 'judge' is on another variant, {parameters.recipe!r}")
        if sorted(parameters.trial.variants) != sorted(tried):
            self._problems.append(
                f"its trial is of {', '.join(sorted(parameters.trial.variants))}, "
                f"and {', '.join(sorted(tried))} are named"
            )
        for role, reference in judge.inputs.items():
            record = self._find(role, reference)
            if record is None:
                continue
            self._check_record(record)
            if digest_json(record.result) != judge.input_digests.get(role):
                place = self._evidence.place(record.stage, record.key)
                self._problems.append(f"{role}: {place}: its result is not the one that was judged")
            self._check_earlier(role, record)
            self._check_files(role, record)

    def _judge_again(self, judge: StageRecord) -> JudgeResult | None:
        """Return the recomputed verdict, or None if the evidence is insufficient."""
        if self._has_gap or not self._evidence.has_answers:
            return None
        kept, inputs = JUDGE.typed(judge), StageInputs(self._evidence.store, judge.inputs)
        for role, reference in judge.inputs.items():
            if reference.stage == SPEED.name:
                found = find_draw_mismatches(role, inputs.record(role), inputs.loads(role))
                self._problems += found
        again = judge_evidence(kept.parameters, inputs, kept.result.history)
        ours, theirs = (report_judged("", None, each) for each in (kept.result, again))
        self._problems += [f"its stage 'judge': {each}" for each in find_differing(ours, theirs)]
        return again

    def _find(self, role: str, reference: StageReference) -> StageRecord | None:
        """Return a stage's record, or None, which is a gap."""
        place = self._evidence.place(reference.stage, reference.key)
        try:
            record = self._evidence.store.find(reference.stage, reference.key)
        except PrepareError as error:
            self._miss(f"{role}: {place}: {error.message}; its evidence is missing")
            return None
        if record is None:
            self._miss(f"{role}: {place} is missing")
        return record

    def _miss(self, problem: str) -> None:
        self._problems.append(problem)
        self._has_gap = True

    def _check_record(self, record: StageRecord) -> None:
        """Check that the stage's parameters and inputs give its key."""
        if key_of(record) != record.key:
            self._problems.append(
                f"{self._evidence.place(record.stage, record.key)}: its parameters do not give "
                "its key, so they were changed afterwards (or another version of prepare wrote "
                "them)"
            )

    def _check_files(self, role: str, record: StageRecord) -> None:
        """Check a stage's file against the digest in its record."""
        if record.stage == EVALUATE.name:
            self._answers += EVALUATE.result_of(record).n
        if not self._evidence.has_answers or (listed := listed_file(record)) is None:
            return
        name, digest = listed
        file = self._evidence.store.stage_folder(record.stage, record.key) / name
        place = f"{role}: {self._evidence.place(record.stage, record.key)}/{name}"
        if not file.is_file():
            self._miss(f"{place} is missing")
        elif digest_file(file) != digest:
            self._problems.append(f"{place}: the file was changed since (its digest is another)")

    def _check_earlier(self, role: str, record: StageRecord) -> None:
        """Check that what a stage depends on is what it depended on then."""
        is_whole = self._evidence.bundle is not None
        for name, reference in record.inputs.items():
            place = self._evidence.place(reference.stage, reference.key)
            try:
                source = self._evidence.store.find(reference.stage, reference.key)
            except PrepareError as error:
                self._problems.append(f"{role}: its '{name}', {place}: {error.message}")
                continue
            if source is None:
                if is_whole:
                    self._miss(f"{role}: its '{name}', {place} is missing")
                continue
            if digest_json(source.result) != record.input_digests.get(name):
                self._problems.append(f"{role}: depends on another '{name}' than is in {place} now")
            if is_whole and reference.key not in self._checked:
                self._checked.add(reference.key)
                self._check_record(source)
                self._check_earlier(role, source)


def key_of(record: StageRecord) -> str:
    """Return the key computed from the record's parameters and inputs."""
    return stage_key(record.stage, newest_revision(record.stage), record.parameters, record.inputs)


def listed_file(record: StageRecord) -> tuple[str, str] | None:
    """Return name and digest of the file that a stage's record lists; None without one."""
    if record.stage == EVALUATE.name:
        return ANSWERS, EVALUATE.result_of(record).answers_digest
    if record.stage == ASKED.name:
        return QUESTIONS, ASKED.result_of(record).questions_digest
    if record.stage == SPEED.name:
        return LOADS, SPEED.result_of(record).loads_digest
    return None


def _find_uncounted(claims: RecordedVerdicts, recipe: str, store: Store) -> Iterator[str]:
    """Yield attempts of verdicts that the store's ledger lacks."""
    key = claims.judges.get(recipe)
    judge = store.find(JUDGE.name, key) if key is not None else None
    if judge is None:
        return
    trial, number = JUDGE.parameters_of(judge).trial, JUDGE.result_of(judge).history.attempt
    attempts = AttemptLedger(store).attempts(trial.baseline)
    if not any(each.number == number and trial.is_of(each.trial) for each in attempts):
        yield f"attempt {number} against its baseline is not the one in the store's ledger"


def judge_confirmed(record: StageRecord, loads: list[LoadRun]) -> SpeedGateReport:
    """Judge the blocks of a tuning's winner and of the engine's defaults."""
    told = SPEED.parameters_of(record).decided_by
    return decide_speed_gate(
        f"ratio.{told.name}", told.rule, workload=told.name, tier="critical", loads=loads
    )


def check_tuning(report: RunReport, evidence: Evidence) -> VariantCheck:
    """Check a tuning's confirmation of its winner; the screening itself has no gate.

    Raises:
        UsageError: the run confirmed nothing.
    """
    tuning = report.tuning
    if tuning is None or tuning.winner is None or tuning.confirmation is None:
        raise UsageError(
            f"run {report.run} measured no winner, so there is nothing to compute",
            where=f"run {report.run}",
            hint="`prepare runs show` has the screening",
        )
    key, computed = tuning.stage or "", None
    place = evidence.place(SPEED.name, key)
    differences: list[str] = []
    try:
        record = evidence.store.find(SPEED.name, key)
        if record is None:
            raise LookupError(f"{place} is missing")
        inputs = StageInputs(evidence.store, {"speed": record.as_reference()})
        loads, asked = inputs.loads("speed"), SPEED.parameters_of(record)
        file = evidence.store.stage_folder(SPEED.name, key) / LOADS
        (claim,), workload = tuning.speed.claims, read_pinned(asked.workload)
        level = tuning.trial.level if tuning.trial is not None else tuning.alpha
        served = tuning.served
        rule = build_rule(claim, level, served.accelerator if served else None, workload, served)
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


def find_differing(kept: VariantReport, computed: VariantReport) -> list[str]:
    """Return every field of the verdict in which the two reports differ, by path."""
    ours = kept.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    theirs = computed.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    if ours["reason"].startswith(theirs["reason"] + NOT_PREFERRED):
        ours["reason"] = theirs["reason"]
    return find_differing_values("", ours, theirs)


def find_differing_values(path: str, kept: Any, computed: Any) -> list[str]:
    """Return every path at which two values differ, below `path`."""
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

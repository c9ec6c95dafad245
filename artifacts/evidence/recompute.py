"""Recomputes verdicts from kept answers, without a server or network.

It reports every difference from the kept evidence and verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from artifacts.evidence.load_log_check import find_draw_mismatches
from artifacts.evidence.pairing import mixed_sides
from artifacts.evidence.question_check import (
    find_answer_count_mismatches,
    find_question_mismatches,
    identify,
)
from artifacts.evidence.rule_check import find_differing_values, find_rule_mismatches
from artifacts.evidence.source import Evidence
from artifacts.multiple_testing import NOT_PREFERRED
from artifacts.run_record import RunReport, VariantReport, report_judged
from eval_gates.answer_log import ANSWERS, QUESTIONS
from eval_gates.speed.load_run import LOADS, LoadRun
from pipeline.core.digest import digest_json
from pipeline.core.errors import PrepareError, UsageError
from pipeline.core.stage_record import StageRecord, StageReference
from pipeline.core.store import Store
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JUDGE, JudgeResult
from pipeline.stages.judge.verdict import judge_evidence
from pipeline.stages.questions import QUESTIONS as ASKED
from pipeline.stages.speed import SPEED as LOADED

# What records raise that do not fit together.
UNREADABLE = (ValueError, LookupError, ArithmeticError, TypeError, OSError, PrepareError)
# The promotion says more in these, and attribution describes: no verdict depends on them.
NOT_OF_THE_VERDICT = ("promoted", "registry_version", "weights_bytes", "ablation")


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
    """Recorded verdicts on variants that were tried together."""

    variants: tuple[VariantReport, ...]  # verdicts
    tried: tuple[str, ...]  # recipes; one without a verdict counts, too
    # key of the judge stage, by recipe; those without have no verdict by gates
    judges: Mapping[str, str]


def check_run(report: RunReport, store: Store) -> list[VariantCheck]:
    """Check every variant of a run that has or should have a verdict.

    Raises:
        UsageError: gates judged no variant of the run.
    """
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
                *find_uncounted(claims, check.recipe, store),
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


def find_uncounted(claims: RecordedVerdicts, recipe: str, store: Store) -> Iterator[str]:
    """Yield attempts of verdicts that the store's ledger lacks."""
    key = claims.judges.get(recipe)
    judge = store.find("judge", key) if key is not None else None
    if judge is None:
        return
    trial, number = JUDGE.parameters_of(judge).trial, JUDGE.result_of(judge).history.attempt
    attempts = AttemptLedger(store).attempts(trial.baseline)
    if not any(each.number == number and trial.is_of(each.trial) for each in attempts):
        yield f"attempt {number} against its baseline is not the one in the store's ledger"


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


def check_claims(claims: RecordedVerdicts, source: Evidence) -> list[VariantCheck]:
    """Check every variant that has or needs a judge stage."""
    # Who failed without a verdict of the judge, such as one that does not speak, has no gates.
    variants = [
        v
        for v in claims.variants
        if v.recipe in claims.judges or v.verdict in ("pass", "undecided")
    ]
    evidence = {
        v.recipe: VariantEvidence(source, v.recipe, claims.judges.get(v.recipe), claims.tried)
        for v in variants
    }
    again = {v.recipe: report_again(v, evidence[v.recipe].judge_again()) for v in variants}
    return [
        VariantCheck(
            recipe=variant.recipe,
            kept=variant.verdict,
            computed=found.verdict if (found := again[variant.recipe]) is not None else None,
            answers=evidence[variant.recipe].answers,
            differences=(
                *evidence[variant.recipe].problems,
                *find_differing(variant, again[variant.recipe]),
            ),
        )
        for variant in variants
    ]


def report_again(variant: VariantReport, found: JudgeResult | None) -> VariantReport | None:
    """Return a variant's report with the recomputed verdict, or None."""
    if found is None:
        return None
    report = report_judged(variant.recipe, variant.weights_bytes, found)
    stated = {"promoted": variant.promoted, "registry_version": variant.registry_version}
    return report.model_copy(update=stated)


class VariantEvidence:
    """Evidence of one variant's verdict, checked against its digests.

    `key`: of the judge stage, or None. `tried`: the recipes that the verdict counts.
    """

    def __init__(
        self, source: Evidence, recipe: str, key: str | None, tried: Sequence[str]
    ) -> None:
        self._source = source
        self._rests_checked: set[str] = set()
        self.problems: list[str] = []
        self.answers = 0
        self._judge: StageRecord | None = None
        if key is None:
            self.problems.append("the run names no stage 'judge' for it: its evidence is missing")
        else:
            self._judge = self._find(StageReference(stage="judge", key=key))
        self._inputs = self._judge.inputs if self._judge is not None else {}
        self._records: dict[str, StageRecord] = {}
        if self._judge is not None:
            self._check_record(self._judge)
            for role, reference in self._inputs.items():
                if (record := self._find(reference)) is not None:
                    self._records[role] = record
                    self._check_input(role, reference, record, self._judge)
            rules = find_rule_mismatches(
                JUDGE.parameters_of(self._judge), recipe, tried, self._records
            )
            self._add(rules)
            self.problems += mixed_sides(self._judge, self._records)
            if not self._has_gap and source.has_answers:
                self._check_asked()

    def judge_again(self) -> JudgeResult | None:
        """Return the recomputed verdict, or None if the evidence is insufficient."""
        judge = self._judge
        if judge is None or self._has_gap or not self._source.has_answers:
            return None
        try:
            kept = JUDGE.typed(judge)
            self._add(self._find_draw_mismatches())
            again = judge_evidence(
                kept.parameters,
                set(judge.inputs),
                self._answers,
                self._records.__getitem__,
                self._loads,
                kept.result.history,
            )
            ours, theirs = (report_judged("", None, each) for each in (kept.result, again))
        except UNREADABLE as error:
            self.problems.append(f"the verdict cannot be computed: {error}")
            return None
        self.problems += [f"its stage 'judge': {each}" for each in find_differing(ours, theirs)]
        return again

    def _add(self, problems: Iterator[str]) -> None:
        try:
            self.problems.extend(problems)
        except UNREADABLE as error:
            self.problems.append(f"the verdict cannot be computed: {error}")

    def _find_draw_mismatches(self) -> Iterator[str]:
        for role, record in self._records.items():
            if record.stage == LOADED.name:
                yield from find_draw_mismatches(role, record, self._loads(role))

    @property
    def _has_gap(self) -> bool:
        return any("is missing" in problem for problem in self.problems)

    def _check_asked(self) -> None:
        try:
            self.problems += self._find_question_mismatches()
        except PrepareError as error:
            self.problems.append(f"{error.where}: {error.message}; its evidence is missing")

    def _find_question_mismatches(self) -> Iterator[str]:
        for role, record in self._records.items():
            side, _, suite = role.partition(".")
            if side == "questions":
                questions = identify(self._rows(role, QUESTIONS))
                yield from find_answer_count_mismatches(role, record, questions)
                for other in (f"{each}.{suite}" for each in ("baseline", "candidate", "again")):
                    if other in self._records:
                        answers = identify(self._rows(other, ANSWERS))
                        yield from find_question_mismatches(
                            other, self._records[other], answers, questions
                        )

    def _answers(self, role: str) -> list[dict[str, Any]]:
        return list(self._rows(role, ANSWERS))

    def _loads(self, role: str) -> list[LoadRun]:
        reference = self._inputs[role]
        return self._source.loads(reference.stage, reference.key)

    def _rows(self, role: str, name: str) -> Iterator[dict[str, Any]]:
        reference = self._inputs[role]
        return self._source.rows(reference.stage, reference.key, name)

    def _find(self, reference: StageReference) -> StageRecord | None:
        place = self._place(reference)
        try:
            record = self._source.find(reference.stage, reference.key)
        except PrepareError as error:
            self.problems.append(f"{place}: {error.message}; its evidence is missing")
            return None
        if record is None:
            self.problems.append(f"{place} is missing")
        return record

    def _place(self, reference: StageReference) -> str:
        return self._source.place(reference.stage, reference.key)

    def _check_record(self, record: StageRecord) -> None:
        """Check the stage's key, which is the digest of its parameters."""
        if self._source.key_of(record) != record.key:
            place = self._source.place(record.stage, record.key)
            self.problems.append(
                f"{place}: its parameters do not give its key, so they were changed afterwards "
                "(or another version of prepare wrote them)"
            )

    def _check_input(
        self, role: str, reference: StageReference, record: StageRecord, judge: StageRecord
    ) -> None:
        self._check_record(record)
        if digest_json(record.result) != judge.input_digests.get(role):
            place = self._place(reference)
            self.problems.append(f"{role}: {place}: its result is not the one that was judged")
        self._check_rests(role, record)
        if reference.stage == "evaluate":
            found = EVALUATE.result_of(record)
            self.answers += found.n
            wrong = "the answers are not those that were given"
            self._check_file(role, reference, ANSWERS, found.answers_digest, wrong)
        if reference.stage == "questions":
            digest = ASKED.result_of(record).questions_digest
            wrong = "the questions are not those that were asked"
            self._check_file(role, reference, QUESTIONS, digest, wrong)
        if reference.stage == "speed":
            digest = LOADED.result_of(record).loads_digest
            wrong = "the timings are not those that were measured"
            self._check_file(role, reference, LOADS, digest, wrong)

    def _check_file(
        self, role: str, reference: StageReference, name: str, kept: str, wrong: str
    ) -> None:
        """Report `wrong` unless a file has the digest in its stage."""
        if not self._source.has_answers:
            return
        file = f"{self._place(reference)}/{name}"
        try:
            digest = self._source.digest(reference.stage, reference.key, name)
        except PrepareError as error:
            self.problems.append(f"{role}: {file}: {error.message}; its evidence is missing")
            return
        if digest is None:
            self.problems.append(f"{role}: {file} is missing")
        elif digest != kept:
            self.problems.append(f"{role}: {file}: {wrong}")

    def _check_rests(self, role: str, record: StageRecord) -> None:
        """Check that weights and questions are older than the answers."""
        for name, reference in record.inputs.items():
            place = self._place(reference)
            try:
                source = self._source.find(reference.stage, reference.key)
            except PrepareError as error:
                self.problems.append(f"{role}: its '{name}', {place}: {error.message}")
                continue
            if source is None:
                if self._source.is_whole:
                    self.problems.append(f"{role}: its '{name}', {place} is missing")
                continue
            if digest_json(source.result) != record.input_digests.get(name):
                self.problems.append(f"{role}: depends on another '{name}' than is in {place} now")
            if self._source.is_whole and reference.key not in self._rests_checked:
                self._rests_checked.add(reference.key)
                self._check_record(source)
                self._check_rests(role, source)


def find_differing(kept: VariantReport, computed: VariantReport | None) -> list[str]:
    """Return every field in which the two reports differ, by path."""
    if computed is None:
        return []
    ours = kept.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    theirs = computed.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    if ours["reason"].startswith(theirs["reason"] + NOT_PREFERRED):
        ours["reason"] = theirs["reason"]
    return list(find_differing_values("", ours, theirs))

"""Computes a run's verdicts again from the answers it kept, with no server and no network.

Says where the kept evidence, the kept verdicts and what follows from the evidence differ: an
answer that was changed or is missing, a policy edited afterwards, a verdict that does not follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.digest import digest_bytes, digest_json
from pipeline.errors import StoreError, UsageError
from pipeline.plan import stage_key
from pipeline.records import RunReport, StageRecord, StageReference, VariantReport
from pipeline.runner import unjudged
from pipeline.selection import corrected
from pipeline.stages.evaluate import ANSWERS
from pipeline.stages.judge import judged
from pipeline.store import Store
from recipes.policy import Policy

QUESTIONS = "questions.jsonl"
# Sums of floating-point numbers may differ in the last digits on another machine.
RELATIVE_TOLERANCE = 1e-9
# The promotion says more in these, which a verdict does not depend on.
NOT_OF_THE_VERDICT = ("promoted", "registry_version", "weights_bytes")


@dataclass(frozen=True)
class VariantCheck:
    """One variant's verdict as kept and as computed again, and every difference found."""

    recipe: str
    kept: str
    computed: str | None
    answers: int
    differences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {**vars(self), "differences": list(self.differences)}


def check_run(report: RunReport, store: Store) -> list[VariantCheck]:
    """Check every variant of a run that was judged, or is said to have been.

    Raises:
        UsageError: no variant of the run got as far as a verdict by gates.
    """
    keys = {
        stage.variant: str(stage.key)
        for stage in report.stages
        if stage.name == "judge" and stage.status != "failed"
    }
    # Who failed without a verdict of the judge, such as one that does not speak, has no gates.
    variants = [
        v for v in report.variants if v.recipe in keys or v.verdict in ("pass", "undecided")
    ]
    if not variants:
        raise UsageError(
            f"no variant of run {report.run} was judged, so there is no verdict to compute again",
            where=f"{store.root}/runs/{report.run}",
            cure="`prepare runs list` names the runs and their verdicts",
        )
    evidence = {v.recipe: Evidence(store, keys.get(v.recipe)) for v in variants}
    again = {recipe: each.judged_again() for recipe, each in evidence.items()}
    together = selected_again(report, again, evidence)
    return [
        VariantCheck(
            recipe=variant.recipe,
            kept=variant.verdict,
            computed=together[variant.recipe].verdict if variant.recipe in together else None,
            answers=evidence[variant.recipe].answers,
            differences=(
                *evidence[variant.recipe].problems,
                *differing(variant, together.get(variant.recipe)),
            ),
        )
        for variant in variants
    ]


def selected_again(
    report: RunReport, again: dict[str, dict[str, Any] | None], evidence: dict[str, Evidence]
) -> dict[str, VariantReport]:
    """The computed reports of single variants, with the correction for their number."""
    computed = {}
    for variant in report.variants:
        found = again.get(variant.recipe)
        if found is not None:
            computed[variant.recipe] = VariantReport(
                recipe=variant.recipe,
                weights_bytes=variant.weights_bytes,
                promoted=variant.promoted,
                registry_version=variant.registry_version,
                **found,
            )
    reports = [computed.get(variant.recipe, variant) for variant in report.variants]
    # Holm counts all that were tried: leaving one out of the record does not loosen it.
    tried = {variant.recipe for variant in report.variants}
    reports += [
        unjudged(recipe, "error", "missing from the record", None)
        for recipe in report.command.get("recipes", [])
        if recipe not in tried
    ]
    alphas = [each.alpha for each in evidence.values() if each.alpha is not None]
    changed = corrected(reports, min(alphas)) if alphas else []
    return {**computed, **{r.recipe: r for r in changed if r.recipe in computed}}


class Evidence:
    """What one variant's verdict was computed from, checked against its digests.

    Args:
        store: where it lies.
        key: of the judge stage; None where the run names none.
    """

    def __init__(self, store: Store, key: str | None) -> None:
        self._store = store
        self.problems: list[str] = []
        self.answers = 0
        self.alpha: float | None = None
        self._judge: StageRecord | None = None
        if key is None:
            self.problems.append("the run names no stage 'judge' for it: its evidence is missing")
        else:
            self._judge = self._found(StageReference(stage="judge", key=key))
        self._inputs = self._judge.inputs if self._judge is not None else {}
        if self._judge is not None:
            self._check_record(self._judge)
            for role, reference in self._inputs.items():
                self._check_input(role, reference, self._judge)

    def judged_again(self) -> dict[str, Any] | None:
        """The verdict that follows from the evidence; None where it cannot be computed."""
        judge = self._judge
        if judge is None or any("is missing" in problem for problem in self.problems):
            return None
        try:
            self.alpha = Policy.model_validate(judge.parameters["policy"]).alpha
            return judged(judge.parameters, set(judge.inputs), self._folder, self._record)
        except (ValueError, KeyError, OSError) as error:
            self.problems.append(f"the verdict cannot be computed: {error}")
            return None

    def _folder(self, role: str) -> Path:
        reference = self._inputs[role]
        return self._store.stage_folder(reference.stage, reference.key)

    def _record(self, role: str) -> StageRecord:
        record = self._found(self._inputs[role])
        if record is None:
            raise ValueError(f"{role} is missing")
        return record

    def _found(self, reference: StageReference) -> StageRecord | None:
        place = self._store.stage_folder(reference.stage, reference.key)
        try:
            record = self._store.find(reference.stage, reference.key)
        except StoreError as error:
            self.problems.append(f"{place}: {error.what}; its evidence is missing")
            return None
        if record is None:
            self.problems.append(f"{place} is missing")
        return record

    def _check_record(self, record: StageRecord) -> None:
        """A stage's folder is named by the digest of its parameters: they cannot be edited."""
        if stage_key(record.stage, record.parameters, record.inputs) != record.key:
            place = self._store.stage_folder(record.stage, record.key)
            self.problems.append(
                f"{place}: its parameters do not give its key, so they were changed afterwards "
                "(or another version of prepare wrote them)"
            )

    def _check_input(self, role: str, reference: StageReference, judge: StageRecord) -> None:
        record = self._found(reference)
        if record is None:
            return
        self._check_record(record)
        place = self._store.stage_folder(reference.stage, reference.key)
        if digest_json(record.result) != judge.input_digests[role]:
            self.problems.append(f"{role}: {place}: its result is not the one that was judged")
        self._check_rests(role, record)
        if reference.stage == "evaluate":
            self._check_answers(role, place / ANSWERS, record)
        if reference.stage == "questions":
            self._check_questions(role, place / QUESTIONS, record)

    def _check_rests(self, role: str, record: StageRecord) -> None:
        """Answers of weights, or to questions, that were made again since say nothing of them."""
        for name, reference in record.inputs.items():
            place = self._store.stage_folder(reference.stage, reference.key)
            try:
                source = self._store.find(reference.stage, reference.key)
            except StoreError as error:
                self.problems.append(f"{role}: its '{name}', {place}: {error.what}")
                continue
            if source is not None and digest_json(source.result) != record.input_digests[name]:
                self.problems.append(f"{role}: rests on another '{name}' than is in {place} now")

    def _check_questions(self, role: str, file: Path, record: StageRecord) -> None:
        if not file.is_file():
            self.problems.append(f"{role}: {file} is missing")
        elif digest_bytes(file.read_bytes()) != record.result["questions_digest"]:
            self.problems.append(f"{role}: {file}: the questions are not those that were asked")

    def _check_answers(self, role: str, file: Path, record: StageRecord) -> None:
        if not file.is_file():
            self.problems.append(f"{role}: {file} is missing")
        elif digest_bytes(file.read_bytes()) != record.result["answers_digest"]:
            self.problems.append(f"{role}: {file}: the answers are not those that were given")
        self.answers += int(record.result["n"])


def differing(kept: VariantReport, computed: VariantReport | None) -> list[str]:
    """Every field in which the two reports differ, named by its path."""
    if computed is None:
        return []
    ours = kept.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    theirs = computed.model_dump(exclude=set(NOT_OF_THE_VERDICT))
    # Which of the passing variants got the alias is added to the reason afterwards.
    if str(ours["reason"]).startswith(str(theirs["reason"])):
        ours["reason"] = theirs["reason"]
    return list(_paths_that_differ("", ours, theirs))


def _paths_that_differ(path: str, kept: Any, computed: Any) -> list[str]:
    if isinstance(kept, dict) and isinstance(computed, dict):
        names = kept.keys() | computed.keys()
        return [
            line
            for name in sorted(names)
            for line in _paths_that_differ(f"{path}.{name}", kept.get(name), computed.get(name))
        ]
    if isinstance(kept, list | tuple) and isinstance(computed, list | tuple):
        if len(kept) != len(computed):
            return [f"{path[1:]}: kept {len(kept)} of them, computed {len(computed)}"]
        return [
            line
            for number, (ours, theirs) in enumerate(zip(kept, computed, strict=True))
            for line in _paths_that_differ(f"{path}[{number}]", ours, theirs)
        ]
    if isinstance(kept, float) and isinstance(computed, float):
        same = math.isclose(kept, computed, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    else:
        same = kept == computed
    return [] if same else [f"{path[1:]}: kept {kept!r}, computed {computed!r}"]

"""Computes a verdict again from its evidence, and that of the recorded arm it was compared with."""

from __future__ import annotations

from collections.abc import Iterator

from artifacts.evidence.differences import UNREADABLE, find_differing_values
from artifacts.evidence.recorded_loads import find_draw_mismatches
from pipeline.stages import answers_role, newest_revision, questions_role
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
    find_other_margins,
)
from pipeline.stages.verdict import JUDGE, JudgeResult
from prepare.digest import digest_file, digest_json
from prepare.errors import EvidenceError, PrepareError
from prepare.stage import StageRecord, StageReference, stage_key
from prepare.store import Store

MISSING = " is missing"


def find_evidence(key: str | None, store: Store, problems: list[str]) -> Evidence | None:
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


def read_stages(evidence: Evidence, problems: list[str], *, is_bundle: bool) -> bool:
    """Check all stages of a verdict; return whether it can be judged again.

    Those of a bundle are complete; a store of runs may lack what the inputs were made from.
    """
    is_complete = True
    seen = set[str]()
    judge = evidence.judge.record.as_reference()
    pending: list[tuple[str, StageReference, str | None, int]] = [(JUDGE.name, judge, None, 0)]
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


def judge_again(evidence: Evidence, problems: list[str]) -> JudgeResult:
    """Return the verdict computed again; what differs is added to `problems`."""
    for role, measured in evidence.speed.items():
        problems += find_draw_mismatches(role, measured.record, evidence.loads(role))
    kept = evidence.judge
    again = judge_evidence(kept.parameters, evidence, kept.result.history)
    problems += _find_other_record(evidence)
    differing = find_differing_values("", kept.result.model_dump(), again.model_dump())
    problems += [f"its stage 'judge': {words}" for words in differing]
    return again


def key_of(record: StageRecord) -> str:
    """Return the key computed from parameters and inputs."""
    return stage_key(record.stage, newest_revision(record.stage), record.parameters, record.inputs)


def check_archive(
    store: Store, parameters: RecordedParameters, where: str
) -> tuple[Evidence, RecordedResult]:
    """Compute a recorded arm's own verdict again; return its evidence and facts.

    EvidenceError: it is incomplete, was changed, or is of another verdict.
    """
    problems: list[str] = []
    evidence = find_evidence(parameters.judge, store, problems)
    facts = None
    try:
        if evidence is not None and read_stages(evidence, problems, is_bundle=False):
            judge_again(evidence, problems)
            for name in evidence.judge.parameters.policy.suites:
                evidence.questions(questions_role(name))
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
    then = recorded.judge.parameters
    for fault in find_other_margins(parameters, then.policy, then.family):
        yield f"{RECORDED.name}: {fault}"
    policy = compared_policy(then.policy, parameters, then.family)
    if policy.model_dump() != evidence.judge.parameters.policy.model_dump():
        yield f"{RECORDED.name}: the policy is not that of its evidence"
    for name in policy.suites:
        asked = recorded.record(answers_role(parameters.side, name))
        recalled = evidence.typed(RECALL, answers_role("baseline", name))
        if (recalled.parameters.evaluate, recalled.record.result) != (asked.key, asked.result):
            yield f"baseline.{name}: its answers are not those of the recorded arm's evidence"
        if recorded.references[questions_role(name)] != evidence.references[questions_role(name)]:
            yield f"questions.{name}: they are not those of the recorded arm's evidence"

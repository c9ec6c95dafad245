"""Checks the answers that a recheck's record names."""

from __future__ import annotations

from collections.abc import Iterator

from artifacts.evidence.differences import UNREADABLE
from artifacts.evidence.recompute import find_evidence, judge_again, read_stages
from artifacts.recheck_report import RecheckAnswer, RecheckReport
from artifacts.run_record import RunReport
from prepare.store import Store


def find_other_recheck(report: RunReport, store: Store) -> Iterator[str]:
    """Yield where a recheck's answers are not those of its verdicts."""
    recheck = report.recheck
    if recheck is None:
        return
    if recheck != RecheckReport.of(recheck.engine, recheck.source):
        yield f"recheck: what it names as the cause is not '{recheck.cell}'"
    answers = (recheck.engine, recheck.source)
    for answer, is_against_record in zip(answers, (True, False), strict=True):
        if answer is not None and not answer.is_broken:
            for fault in _find_other_answer(answer, store, is_against_record=is_against_record):
                yield f"recheck, run {answer.run}: {fault}"
    last = recheck.source or recheck.engine
    if last is None or (not last.is_broken and last.judge not in report.judges.values()):
        yield "recheck: its last answer is not this run's"


def _find_other_answer(
    answer: RecheckAnswer, store: Store, *, is_against_record: bool
) -> list[str]:
    faults: list[str] = []
    evidence = find_evidence(answer.judge, store, faults)
    try:
        if evidence is not None and read_stages(evidence, faults, is_bundle=False):
            again = judge_again(evidence, faults)
            if (again.verdict, again.reason) != (answer.verdict, answer.reason):
                faults.append("its verdict is another")
            if (evidence.recorded is not None) != is_against_record:
                faults.append("it is the answer to the other question")
    except UNREADABLE as error:
        faults.append(f"the verdict cannot be computed: {error}")
    return faults

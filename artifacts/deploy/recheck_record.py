"""A recheck's tags in the registry: one per tuple, and the newest.

They are untrusted: a pass counts only with evidence, a failure always.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import Field

from artifacts.deploy.registered import RegisteredVersion
from artifacts.deployable import Deployable, TupleDifference
from artifacts.evidence.verify import check_run
from artifacts.recheck_report import RecheckAnswer, RecheckReport
from artifacts.registry import Version, who_am_i
from artifacts.run_record import find_run
from pipeline.stages.evidence import Evidence
from pipeline.stages.verdict import policy_digest
from prepare.errors import PrepareError, RegistryError
from prepare.own_command import own_command
from prepare.record import Record
from prepare.store import Store
from prepare.untrusted import parse_record

RECHECK_TAG = "prepare.recheck"
DIGITS = 12


class RecheckRecord(Record):
    """The outcome of one recheck."""

    schema_version: int = Field(2, description="of this record")
    when: str = Field(description="UTC, ISO 8601")
    who: str = Field(description="who asked for it")
    tuple_digest: str = Field(description="of the members")
    members: Deployable = Field(description="the deployable tuple that was measured")
    changed: tuple[str, ...] = Field((), description="in which members it was not the judged one")
    report: RecheckReport = Field(
        description="its answers; their runs are in the store of `who`, with the evidence"
    )
    stands: bool = Field(description="whether the version's verdict holds for this tuple")

    @property
    def answers(self) -> list[RecheckAnswer]:
        """The answers, the variant against itself first."""
        report = self.report
        return [asked for asked in (report.engine, report.source) if asked is not None]

    @property
    def runs(self) -> list[str]:
        """Ids of the runs that have the evidence."""
        return [answer.run for answer in self.answers]

    def tags(self) -> dict[str, str]:
        text = self.model_dump_json()
        return {RECHECK_TAG: text, f"{RECHECK_TAG}.{self.tuple_digest[:DIGITS]}": text}


def record_of(
    past: RegisteredVersion,
    here: Deployable,
    changed: Sequence[TupleDifference],
    report: RecheckReport,
) -> RecheckRecord:
    """Return the registry's record of `here`."""
    return RecheckRecord(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        who=who_am_i(),
        tuple_digest=here.digest,
        members=here,
        changed=tuple(map(str, changed)),
        report=report,
        stands=stands(past.bundle.variant.verdict, report),
    )


def rechecks_of(version: Version) -> list[RecheckRecord]:
    """Return each tuple's newest recheck."""
    rechecks = []
    for tag in sorted(version.tags):
        if not tag.startswith(f"{RECHECK_TAG}."):
            continue
        try:
            rechecks.append(parse_record(version.tags[tag].encode(), RecheckRecord))
        except ValueError as error:
            again = own_command("recheck", f"{version.name}@{version.version}")
            raise RegistryError(
                f"what a recheck left cannot be read: {error}",
                where=f"{version.name} version {version.version}, tag {tag}",
                hint="another version of prepare wrote it, or the tag was changed: delete the tag "
                f"in MLflow, then `{again}`",
            ) from error
    return rechecks


def stands(then: str, report: RecheckReport) -> bool:
    """Return whether a verdict holds after a recheck.

    The variant must be what it was. Against its source a verdict other than pass holds if it is no
    worse now.
    """
    is_itself = report.engine is None or report.engine.verdict == "pass"
    now = report.source.verdict if report.source is not None else then
    return is_itself and (now in ("pass", then) or then == "fail")


def proven_tuple(record: RecheckRecord, past: RegisteredVersion, store: Store) -> Deployable | None:
    """Return the rechecked tuple if this store's evidence confirms it."""
    report = record.report
    try:
        engine = _judged_in(report.engine, store)
        source = _judged_in(report.source, store)
        asked = [judged for judged in (engine, source) if judged is not None]
        tuples = [Deployable.of(judged) for judged in asked]
        for measured in tuples:
            measured.check_servable(f"run {record.runs[0]}")
        is_proven = (
            len(asked) > 0
            and (engine is None or _is_against_record(engine, past, whole=source is None))
            and (source is None or _is_against_source(source, past))
            and all(judged.trust_remote_code == past.judged.trust_remote_code for judged in asked)
            and all(measured.digest == record.tuple_digest for measured in tuples)
            and all(measured.weights == past.deployable.weights for measured in tuples)
            and RecheckReport.of(report.engine, report.source) == report
            and stands(past.bundle.variant.verdict, report)
        )
    except (PrepareError, ValueError, LookupError, TypeError):
        return None
    return tuples[0] if is_proven else None


def _judged_in(answer: RecheckAnswer | None, store: Store) -> Evidence | None:
    """Return the evidence of an answer; ValueError if it gives another one."""
    if answer is None:
        return None
    run = find_run(store, answer.run)
    (check,) = check_run(run, store)
    if check.differences or check.computed != answer.verdict:
        raise ValueError(f"run {run.run} has another verdict")
    if run.judges[check.recipe] != answer.judge:
        raise ValueError(f"run {run.run} judged something else")
    return Evidence.of_variant(store, answer.judge)


def _is_against_record(judged: Evidence, past: RegisteredVersion, *, whole: bool) -> bool:
    """Return whether it is of the version's own answers, of all suites if `whole`.

    The policy was compared with the record's when it was judged again.
    """
    recorded = judged.recorded
    if recorded is None or (whole and recorded.parameters.left_out):
        return False
    version = past.judged.judge.record.key
    return (recorded.parameters.judge, recorded.parameters.side) == (version, "candidate")


def _is_against_source(judged: Evidence, past: RegisteredVersion) -> bool:
    """Return whether it is of the version's source, by the version's policy."""
    digests = [policy_digest(verdict.judge.record) for verdict in (judged, past.judged)]
    return judged.recorded is None and digests[0] == digests[1]

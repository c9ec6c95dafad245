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
from artifacts.registry import Version, who_am_i
from artifacts.run_record import VariantReport, find_run
from eval_gates.gate_result import Verdict
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

    schema_version: int = Field(1, description="of this record")
    when: str = Field(description="UTC, ISO 8601")
    who: str = Field(description="who asked for it")
    run: str = Field(description="id of the run that has the evidence, in the store of `who`")
    tuple_digest: str = Field(description="of the members")
    members: Deployable = Field(description="the deployable tuple that was measured")
    changed: tuple[str, ...] = Field(description="in which members it was not the judged one")
    verdict: Verdict = Field(description="of the gates on this tuple")
    stands: bool = Field(description="whether the version's verdict holds for this tuple")
    reason: str = Field(description="why, in words")

    def tags(self) -> dict[str, str]:
        text = self.model_dump_json()
        return {RECHECK_TAG: text, f"{RECHECK_TAG}.{self.tuple_digest[:DIGITS]}": text}


def record_of(
    past: RegisteredVersion,
    here: Deployable,
    changed: Sequence[TupleDifference],
    report: VariantReport,
    run: str,
) -> RecheckRecord | None:
    """Return the registry's record of `here`; None without a verdict."""
    held = stands(past.bundle.variant.verdict, report.verdict)
    if held is None or report.verdict in ("error", "skipped"):
        return None
    return RecheckRecord(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        who=who_am_i(),
        run=run,
        tuple_digest=here.digest,
        members=here,
        changed=tuple(map(str, changed)),
        verdict=report.verdict,
        stands=held,
        reason=report.reason,
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
                hint="another version of prepare wrote it, or the tag was changed: run "
                f"`{again}` again",
            ) from error
    return rechecks


def stands(then: str, now: str) -> bool | None:
    """Return whether a verdict holds after a later one; None for an error.

    A verdict other than pass holds if `now` is no worse.
    """
    if now not in ("pass", "fail", "undecided"):
        return None
    return now in ("pass", then) or then == "fail"


def proven_tuple(record: RecheckRecord, past: RegisteredVersion, store: Store) -> Deployable | None:
    """Return the rechecked tuple if this store's evidence confirms it."""
    try:
        run = find_run(store, record.run)
        (check,) = check_run(run, store)
        judged = Evidence.of_variant(store, run.judges[check.recipe])
        proven = Deployable.of(judged)
        proven.check_servable(f"run {run.run}")
    except (PrepareError, ValueError, LookupError, TypeError):
        return None
    same = (
        not check.differences
        and check.computed is not None
        and proven.digest == record.tuple_digest
        and proven.weights == past.deployable.weights
        and judged.trust_remote_code == past.judged.trust_remote_code
        and policy_digest(judged.judge.record) == policy_digest(past.judged.judge.record)
    )
    held = same and stands(past.bundle.variant.verdict, str(check.computed))
    return proven if held else None

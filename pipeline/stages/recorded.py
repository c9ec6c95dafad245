"""An arm whose answers are on record: the evidence of a verdict, copied into the store.

No server of it starts. `recall` takes the answers of one suite out of the archive.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from pydantic import Field

from eval_gates.gate_result import Side
from pipeline.serving.served_model import ServedModel, ServerInfo
from pipeline.stages import FIRST_TEXTS, answers_role
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.packed import open_archive
from pipeline.stages.sanity import SANITY, SanityText
from pipeline.stages.verdict import JUDGE
from prepare.digest import digest_file
from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.stage import Stage, StageReference
from prepare.store import Store
from recipes.policy import Margin, Policy
from recipes.schema import Family

ARCHIVE = "evidence.tar.gz"


class RecordedParameters(Record):
    """Whose answers."""

    origin: str = Field(description="what they are of, as a user named it, and its version")
    archive: str = Field(description="sha256 of the evidence")
    judge: str = Field(description="key of the verdict that they were given for")
    side: Side = Field(description="of that verdict")
    left_out: tuple[str, ...] = Field((), description="suites that are not compared")
    margins: dict[str, Margin] = Field(
        {}, description="by suite, what another engine may lose; without it the policy's margin"
    )


class RecordedRuntime(Record):
    """Where the evidence is."""

    archive: str = ""


class RecordedResult(Record):
    """Facts of the arm, as it was served then."""

    archive_digest: str
    served: ServedModel
    max_length: int = Field(description="tokens that a prompt and its answer may have together")
    texts: list[SanityText] = Field([], description="which the other arm reads, too")
    engine_version: str = Field("", description="as it reported it")
    server: ServerInfo = ServerInfo()


RECORDED = Stage("recorded", 2, RecordedParameters, RecordedRuntime, RecordedResult)


def run(context: StageContext[RecordedParameters, RecordedRuntime]) -> RecordedResult:
    """Copy the archive; EvidenceError if it is another one."""
    copied = context.folder / ARCHIVE
    shutil.copyfile(context.runtime.archive, copied)
    if digest_file(copied) != context.parameters.archive:
        raise EvidenceError(
            "the evidence was changed since it was checked",
            where=context.runtime.archive,
            hint="run the same command again",
        )
    with open_archive(copied) as store:
        return facts_of(context.parameters, store)


def facts_of(parameters: RecordedParameters, store: Store) -> RecordedResult:
    """Return an arm's facts by a store with its evidence; StoreError if a record is missing."""
    judge = JUDGE.typed(store.get(StageReference(stage=JUDGE.name, key=parameters.judge)))
    suite = next(iter(judge.parameters.policy.suites))
    asked = store.get(judge.record.inputs[answers_role(parameters.side, suite)])
    evaluated = EVALUATE.parameters_of(asked)
    sanity = SANITY.typed(store.get(asked.inputs[FIRST_TEXTS]))
    texts = sanity.result.texts
    if "baseline" in sanity.record.inputs:
        before = SANITY.result_of(store.get(sanity.record.inputs["baseline"])).texts
        texts = _read_by(texts, before)
    return RecordedResult(
        archive_digest=parameters.archive,
        served=ServedModel(**{name: getattr(evaluated, name) for name in ServedModel.model_fields}),
        max_length=evaluated.max_length,
        texts=texts,
        engine_version=sanity.result.engine_version,
        server=sanity.result.server,
    )


def _read_by(texts: Sequence[SanityText], before: Sequence[SanityText]) -> list[SanityText]:
    """Return the texts that a variant read: its baseline's, with its own numbers."""
    if len(texts) != len(before):
        return list(texts)
    return [
        ours.model_copy(update={"text": theirs.text, "answer_ids": theirs.answer_ids})
        for ours, theirs in zip(texts, before, strict=True)
    ]


def words_of(parameters: RecordedParameters) -> str:
    """Return what a verdict says of its recorded baseline."""
    others = parameters.left_out
    without = f", without {', '.join(others)}" if others else ""
    return f"against the recorded answers of {parameters.origin}{without}"


def engine_margin(policy: Policy, suite: str, family: Family) -> Margin:
    """Return what another engine may lose: what the policy names, or half of the suite's margin."""
    return policy.engine_margin(suite, family) or policy.suites[suite].margins[family].half


def find_other_margins(
    parameters: RecordedParameters, policy: Policy, family: Family
) -> Iterator[str]:
    """Yield margins that the recorded policy does not give.

    A suite with too few answers for half of its margin is compared by the whole, unless the policy
    names one.
    """
    for name, margin in parameters.margins.items():
        if name not in policy.suites:
            yield f"{name}: the recorded policy has no such suite"
            continue
        allowed = [engine_margin(policy, name, family)]
        if policy.engine_margin(name, family) is None:
            allowed.append(policy.suites[name].margins[family])
        if margin not in allowed:
            yield f"{name}: the margin for another engine is not that of the recorded policy"


def compared_policy(policy: Policy, parameters: RecordedParameters, family: Family) -> Policy:
    """Return the policy that a recorded arm is compared by.

    Speed needs two living servers.
    """
    suites = {
        name: suite.model_copy(
            update={"margins": {**suite.margins, family: parameters.margins[name]}}
        )
        if name in parameters.margins
        else suite
        for name, suite in policy.suites.items()
        if name not in parameters.left_out
    }
    cost = policy.cost
    if cost is not None:
        named = [name for name in cost.suites if name in suites]
        cost = cost.model_copy(update={"suites": named}) if named else None
    return policy.model_copy(update={"suites": suites, "speed": None, "cost": cost})

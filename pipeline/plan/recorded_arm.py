"""Answers on record as the baseline of a comparison: NAME@ALIAS, or RUN:VARIANT of the store.

The evidence is checked as `prepare verify` does, before anything is asked. Policy, questions,
lengths and margins come from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.deploy.registered import (
    RegisteredVersion,
    checked_folder,
    find_version,
    open_version,
)
from artifacts.evidence.recompute import check_archive
from artifacts.evidence.verify import check_run
from artifacts.registry import Registry
from artifacts.run_record import RunReport, find_run
from eval_gates.gate_result import Side
from eval_gates.suites.suite_kind import kind_of
from pipeline.environments.definition import SUITE_ASKER
from pipeline.environments.settings import Settings
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.known_questions import KnownQuestions
from pipeline.stages import answers_role, questions_role
from pipeline.stages.evaluate import EVALUATE, TEXTS
from pipeline.stages.evidence import Evidence
from pipeline.stages.packed import files_of, open_archive, pack
from pipeline.stages.questions import QUESTIONS, QuestionsParameters, QuestionsRuntime
from pipeline.stages.recall import RECALL, RecallParameters, RecallRuntime
from pipeline.stages.recorded import (
    RECORDED,
    RecordedParameters,
    RecordedResult,
    RecordedRuntime,
    compared_policy,
)
from pipeline.stages.verdict import JudgeParameters
from prepare.digest import digest_file
from prepare.errors import EvidenceError, PrepareError, UsageError
from prepare.own_command import own_command
from prepare.stage import StageRecord, StageReference, StageSpec
from prepare.store import Store
from recipes.catalog import BASELINE
from recipes.checkpoints.weight_files import ARCHIVE
from recipes.policy import Margin, Policy

ARM = "baseline"
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d{1,5}(/.*)?|\[[0-9a-fA-F:]+\]:\d{1,5}(/.*)?")


@dataclass(frozen=True)
class RecordedArm:
    """A checked record, which a plan has as its baseline.

    `evidence` has been read to memory. `tokenizer` is the folder of the weights, if it is here.
    """

    parameters: RecordedParameters
    archive: Path
    evidence: Evidence
    facts: RecordedResult
    tokenizer: Path | None

    @property
    def judged(self) -> JudgeParameters:
        return self.evidence.judge.parameters

    @property
    def policy(self) -> Policy:
        return compared_policy(self.judged.policy, self.parameters, self.judged.family)

    @property
    def by_chat(self) -> bool:
        endpoint = self.facts.served.endpoint
        return endpoint is not None and endpoint.chat

    @property
    def reference(self) -> dict[str, str]:
        """What identifies the baseline for attempts."""
        return {"recorded": self.parameters.judge, "side": self.parameters.side}

    def asked(self, suite: str) -> StageRecord:
        """Return the record of a suite's answers."""
        return self.evidence.record(answers_role(self.parameters.side, suite))

    def answered(self, suite: str) -> int:
        """Return the number of a suite's recorded answers."""
        return len(self.evidence.answers(answers_role(self.parameters.side, suite)))

    def known(self) -> dict[str, KnownQuestions]:
        """Return by suite what its recorded answers show: no look goes further than they do."""
        known = {}
        for name, suite in self.policy.suites.items():
            rows = self.evidence.answers(answers_role(self.parameters.side, name))
            kind = kind_of(suite)
            shown = kind.recorded_answers(suite, rows)
            known[name] = KnownQuestions.of_answers(rows, shown, kind.judged_group)
        return known

    def without(self, left_out: Sequence[str]) -> RecordedArm:
        """Return the arm without these suites."""
        parameters = self.parameters.model_copy(update={"left_out": tuple(sorted(left_out))})
        return replace(self, parameters=parameters)

    def with_margins(self, margins: Mapping[str, Margin]) -> RecordedArm:
        """Return the arm for a comparison of engines, by these margins."""
        parameters = self.parameters.model_copy(update={"margins": dict(margins)})
        return replace(self, parameters=parameters)

    # --- what is not there ----------------------------------------------------------------------

    def lacking(self, store: Store, sources: SourceResolver) -> Iterator[tuple[str, str]]:
        """Yield suites that cannot be compared here, each with the reason."""
        for name, suite in self.judged.policy.suites.items():
            kind = kind_of(suite)
            try:
                kind.check_machine(suite)
            except PrepareError as error:
                yield name, error.message
                continue
            if kind.reads_baseline and self._texts(name, store) is None:
                yield name, "its private texts are not in evidence, and this store lacks them"
            elif self._questions_from(name, store, sources) is None:
                yield name, "its questions are not whole in evidence, and this store lacks them"

    def _texts(self, name: str, store: Store) -> Path | None:
        """Return the private texts of a suite's answers in this store."""
        asked = self.asked(name)
        there = store.find(asked.stage, asked.key)
        file = store.stage_folder(asked.stage, asked.key) / TEXTS
        return (
            file if there is not None and there.result == asked.result and file.exists() else None
        )

    def _questions_from(
        self, name: str, store: Store, sources: SourceResolver
    ) -> QuestionsRuntime | None:
        """Return where the recorded questions are, if they are anywhere."""
        record = self.evidence.record(questions_role(name))
        runtime = QuestionsRuntime(environment=SUITE_ASKER, suite=name)
        there = store.find(record.stage, record.key)
        if there is not None:
            return runtime if there.result == record.result else None
        suite = self.judged.policy.suites[name]
        try:
            source = sources.suite(name, suite)
        except PrepareError:
            source = None
        wanted = QUESTIONS.parameters_of(record).source
        if source is not None and source.identity == wanted and wanted.kind != "hub":
            folder = str(source.folder) if source.folder else None
            return runtime.model_copy(update={"folder": folder})
        if kind_of(suite).is_whole_in_bundle:
            return runtime.model_copy(update={"archive": str(self.archive)})
        return None

    # --- stages ---------------------------------------------------------------------------------

    def stage(self, store: Path) -> StageSpec:
        """Return the stage that keeps the evidence."""
        runtime = RecordedRuntime(archive=str(self.archive))
        return RECORDED.spec(ARM, self.parameters, {}, runtime, store)

    def questions_stage(self, name: str, store: Path, sources: SourceResolver) -> StageSpec:
        """Return the stage that laid the recorded questions out."""
        record = self.evidence.record(questions_role(name))
        runtime = self._questions_from(name, Store(store), sources)
        assert runtime is not None, f"{name} is left out"
        parameters: QuestionsParameters = QUESTIONS.parameters_of(record)
        return QUESTIONS.spec(name, parameters, {}, runtime, store)

    def recall_stage(
        self, name: str, inputs: Mapping[str, StageSpec | StageReference], store: Path
    ) -> StageSpec:
        """Return the stage that takes a suite's answers out of the evidence."""
        asked = self.asked(name)
        parameters = EVALUATE.parameters_of(asked)
        texts = self._texts(name, Store(store))
        reads_texts = kind_of(parameters.suite).reads_baseline and texts is not None
        return RECALL.spec(
            ARM,
            RecallParameters(
                **dict(self.facts.served),
                suite=parameters.suite,
                max_length=parameters.max_length,
                evaluate=asked.key,
            ),
            inputs,
            RecallRuntime(suite=name, texts=str(texts) if reads_texts else ""),
            store,
        )


def is_recorded(baseline: str) -> bool:
    """Return whether a baseline is named as answers on record, not as a URL.

    UsageError: a URL without its scheme.
    """
    if _HOST_AND_PORT.fullmatch(baseline):
        raise UsageError(
            f"'{baseline}' is neither a URL nor answers on record",
            where="--baseline",
            hint=f"write http://{baseline}; no variant of a run has a number as its name",
        )
    return "://" not in baseline


def open_record(
    reference: str, registry: Registry, weights: Path | None, settings: Settings, scratch: Path
) -> RecordedArm:
    """Return NAME@ALIAS or RUN:VARIANT after checking it; `scratch` outlives the arm.

    UsageError: there is none. EvidenceError: it is incomplete, or was changed.
    """
    if "@" in reference:
        return _of_version(reference, registry, weights, settings)
    run, mark, variant = reference.rpartition(":")
    if not mark or not run or variant.startswith("/"):
        raise UsageError(
            f"'{reference}' is neither a URL nor answers on record",
            where="--baseline",
            hint="write http://HOST:PORT, NAME@ALIAS of the registry, or RUN:VARIANT of this store",
        )
    if weights is not None:
        raise UsageError(
            "the answers of a run have no folder of weights",
            where="--weights",
            hint="leave it out; --tokenizer names the tokenizer's folder where the store lacks it",
        )
    return _of_run(find_run(settings.open_store(), run), variant, settings.open_store(), scratch)


def _of_version(
    reference: str, registry: Registry, weights: Path | None, settings: Settings
) -> RecordedArm:
    version = find_version(registry, reference)
    folder = checked_folder(version, weights, settings, "gate")
    # Nothing of it is run: its tokenizer is loaded without its code.
    return record_of_version(open_version(version, folder, trust_remote_code=True))


def record_of_version(past: RegisteredVersion) -> RecordedArm:
    """Return the recorded answers of a checked version."""
    version = past.version
    origin = f"{version.name}@{version.version}"
    judge = past.bundle.judges[past.bundle.recipe]
    return _read(past.folder / ARCHIVE, origin, judge, "candidate", past.folder)


def _of_run(report: RunReport, variant: str, store: Store, scratch: Path) -> RecordedArm:
    judges = report.judges
    wanted = next(iter(judges), "") if variant == BASELINE else variant
    if wanted not in judges or report.tuning is not None:
        raise UsageError(
            f"run {report.run} has no verdict on '{variant}', and so no answers to compare with",
            where="--baseline",
            hint=f"it judged: {', '.join(judges) or 'nothing'}; or 'baseline'",
        )
    for check in check_run(report, store):
        if check.recipe == wanted and check.differences:
            raise EvidenceError(
                f"the run's evidence does not give its verdict: {check.differences[0]}",
                where=f"run {report.run}",
                hint=f"`{own_command('verify', report.run)}` names every difference; name another "
                "run, or a registered version",
            )
    evidence = Evidence.of_verdict(store, judges[wanted])
    if evidence.recorded is not None:
        raise UsageError(
            "these answers were themselves compared with recorded ones: a slow decline would pass "
            "from one comparison to the next",
            where=f"--baseline {report.run}:{variant}",
            hint="name what they were compared with: "
            f"--baseline {evidence.recorded.parameters.origin}",
        )
    records = evidence.collect([evidence.judge.record], may_lack_origins=True)
    archive = scratch / "evidence.tar.gz"
    pack(archive, files_of(records, store))
    made = [record for record in records if record.stage in ("quantize", "adopt")]
    folders = [store.stage_folder(record.stage, record.key) / "output" for record in made]
    tokenizer = next((folder for folder in folders if folder.is_dir()), None)
    side: Side = "baseline" if variant == BASELINE else "candidate"
    return _read(archive, f"{report.run}:{variant}", judges[wanted], side, tokenizer)


def _read(
    archive: Path, origin: str, judge: str, side: Side, tokenizer: Path | None
) -> RecordedArm:
    """Compute the recorded verdict again, and return the arm."""
    parameters = RecordedParameters(
        origin=origin, archive=digest_file(archive), judge=judge, side=side
    )
    with open_archive(archive) as store:
        evidence, facts = check_archive(store, parameters, origin)
    return RecordedArm(parameters, archive, evidence, facts, tokenizer)

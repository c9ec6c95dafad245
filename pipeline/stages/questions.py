"""Lists one suite's questions, the same for all arms, so that answers can be paired."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import Field

from eval_gates.answer_log import QUESTIONS_FILE
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import for_worker
from pipeline.stages.context import StageContext
from pipeline.stages.packed import open_archive
from prepare.digest import digest_bytes, digest_file
from prepare.errors import EvidenceError
from prepare.process_environment import NetworkAccess
from prepare.record import Record
from prepare.stage import Stage, StageReference, WorkerRuntime
from recipes.policy import AnyTask

QUESTION_SEED = 20240814


class QuestionsParameters(Record):
    """Which questions."""

    suite: AnyTask = Field(description="of the policy")
    source: QuestionSource
    seed: int = Field(description="of their order")

    @property
    def kind(self) -> str:
        return self.suite.kind


class QuestionsRuntime(WorkerRuntime):
    """Places of the questions."""

    folder: str | None = Field(None, description="of --eval-data, or of a task's file")
    suite: str = Field("", description="its name in the policy")
    archive: str = Field("", description="evidence that has them, where their source is elsewhere")


class QuestionsResult(Record):
    """What was laid out."""

    questions: int
    questions_digest: str
    guessing: float = Field(description="mean score of one who guesses")
    clusters: int | None = Field(None, description="of questions that belong together")
    source: QuestionSource | None = Field(None, description="as in the parameters")
    dropped: int = 0
    dropped_why: str = ""
    task: str | None = Field(None, description="of lm-eval, as its metric and revision")
    metric: str | None = None
    revision: str | None = None
    shared_text: str | None = Field(None, description="field that several of them have in common")

    @property
    def units(self) -> int:
        """Number of questions, or of their clusters."""
        return self.clusters or self.questions


QUESTIONS = Stage("questions", 11, QuestionsParameters, QuestionsRuntime, QuestionsResult)


def run(context: StageContext[QuestionsParameters, QuestionsRuntime]) -> QuestionsResult:
    """Write questions.jsonl, worked examples included."""
    if context.runtime.archive:
        return _from_archive(context)
    parameters = context.parameters
    source = context.parameters.source
    facts = context.run_worker(
        "eval_gates.questions_worker",
        {
            "suite": parameters.suite.model_dump(),
            "source": source.model_dump(),
            "seed": parameters.seed,
            "folder": context.runtime.folder,
        },
        plugins=[for_worker(parameters.suite)],
        needs=[NetworkAccess.HUB] if source.kind == "hub" or source.dataset else [],
        stays=True,
    )
    digest = digest_bytes((context.folder / QUESTIONS_FILE).read_bytes())
    result = QuestionsResult(**facts, questions_digest=digest)
    if result.dropped:
        context.note(f"{result.dropped} {result.dropped_why}")
    return result


def _from_archive(context: StageContext[QuestionsParameters, QuestionsRuntime]) -> QuestionsResult:
    """Copy what evidence has; EvidenceError if it is not that of its record."""
    reference = StageReference(stage=QUESTIONS.name, key=context.spec.key)
    with open_archive(Path(context.runtime.archive)) as store:
        result = QUESTIONS.result_of(store.get(reference))
        place = store.stage_folder(reference.stage, reference.key)
        if digest_file(place / QUESTIONS_FILE) != result.questions_digest:
            raise EvidenceError(
                "the recorded questions are not those of their record",
                where=f"suite {context.runtime.suite}",
                hint="the evidence was changed: get it again from where it was published",
            )
        for file in place.glob("*.jsonl"):
            shutil.copyfile(file, context.folder / file.name)
    return result

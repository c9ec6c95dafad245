"""Takes the recorded answers to one suite out of a recorded arm's evidence."""

from __future__ import annotations

import shutil

from pydantic import Field

from eval_gates.answer_log import ANSWERS
from pipeline.serving.served_model import ServedModel
from pipeline.stages import FIRST_TEXTS
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import EVALUATE, TEXTS, EvaluateResult
from pipeline.stages.packed import open_archive
from pipeline.stages.recorded import ARCHIVE
from prepare.digest import digest_file
from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.stage import Stage, StageReference
from recipes.policy import AnyTask


class RecallParameters(ServedModel):
    """The model as it was served, and what it was asked."""

    suite: AnyTask = Field(description="of the policy")
    max_length: int = Field(description="tokens that a prompt and its answer may have together")
    evaluate: str = Field(description="key of the stage that asked")


class RecallRuntime(Record):
    """What the evidence lacks."""

    suite: str = Field("", description="its name in the policy")
    texts: str = Field("", description="file of private texts, of a suite that reads them")


RECALL = Stage("recall", 1, RecallParameters, RecallRuntime, EvaluateResult)


def run(context: StageContext[RecallParameters, RecallRuntime]) -> EvaluateResult:
    """Copy the answers; EvidenceError if they are not those of the record."""
    reference = StageReference(stage=EVALUATE.name, key=context.parameters.evaluate)
    with open_archive(context.input_folder(FIRST_TEXTS) / ARCHIVE) as store:
        result = EVALUATE.result_of(store.get(reference))
        answers = store.stage_folder(reference.stage, reference.key) / ANSWERS
        if digest_file(answers) != result.answers_digest:
            raise EvidenceError(
                "the recorded answers are not those of their record",
                where=f"suite {context.runtime.suite}",
                hint="the evidence was changed: get it again from where it was published",
            )
        shutil.copyfile(answers, context.folder / ANSWERS)
    if context.runtime.texts:
        shutil.copyfile(context.runtime.texts, context.folder / TEXTS)
    return result

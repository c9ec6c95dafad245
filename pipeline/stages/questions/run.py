"""Lists one suite's questions, the same for all arms, so that answers can be paired."""

from __future__ import annotations

from eval_gates.answer_log import QUESTIONS
from eval_gates.suites.suite_kind import for_worker
from pipeline.core.digest import digest_bytes
from pipeline.core.process_environment import NetworkAccess
from pipeline.stages.context import StageContext
from pipeline.stages.questions import QuestionsParameters, QuestionsResult, QuestionsRuntime


def run(context: StageContext[QuestionsParameters, QuestionsRuntime]) -> QuestionsResult:
    """Write questions.jsonl, worked examples included."""
    parameters, source = context.parameters, context.parameters.source
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
    )
    digest = digest_bytes((context.folder / QUESTIONS).read_bytes())
    found = QuestionsResult(**facts, questions_digest=digest)
    if found.dropped:
        context.note(f"{found.dropped} {found.dropped_why}")
    return found

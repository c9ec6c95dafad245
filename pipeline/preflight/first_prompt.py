"""Renders a suite's first question, for `prepare show`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval_gates.suites.suite_kind import for_worker
from pipeline.environments.definition import SUITE_ASKER
from pipeline.environments.environment import ensure, identity
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.generation_settings import resolve_generation
from pipeline.preflight.generation_faults import generation_faults
from pipeline.stages.context import StageContext
from pipeline.stages.questions import (
    QUESTION_SEED,
    QUESTIONS,
    QuestionsParameters,
    QuestionsRuntime,
)
from prepare.digest import FileDigests
from prepare.errors import UsageError
from prepare.events import Progress
from prepare.process_environment import NetworkAccess
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.checkpoints.chat_template import folder_generation
from recipes.policy import Policy


def first_prompt(
    policy: Policy, name: str, checkpoint: Path, eval_data: Path | None, progress: Progress
) -> dict[str, Any]:
    """Return the first question, as the worker `first_prompt` has it.

    UsageError: there is no such suite or folder. PrepareError: the model cannot be asked, or there
    are no questions.
    """
    if name not in policy.suites:
        raise UsageError(
            f"the policy '{policy.name}' has no suite '{name}'",
            hint=f"its suites are: {', '.join(policy.suites)}",
        )
    if not checkpoint.is_dir():
        raise UsageError(
            "the checkpoint is not a folder",
            where=f"--checkpoint {checkpoint}",
            hint="give a folder with its tokenizer",
        )
    model = folder_generation(checkpoint)
    asked = policy.model_copy(update={"suites": {name: policy.suites[name]}})
    for fault in generation_faults(asked, model):
        raise fault
    suite = resolve_generation(asked, model).suites[name]
    settings = load_settings()
    machine = Accelerator.CPU
    digests = FileDigests(settings.home / "digests.json")
    asker = identity(SUITE_ASKER, machine, settings)
    resolver = SourceResolver(eval_data, asker, digests, progress)
    source = resolver.suite(name, suite)
    folder = str(source.folder) if source.folder else None
    spec = QUESTIONS.spec(
        name,
        QuestionsParameters(suite=suite, source=source.identity, seed=QUESTION_SEED),
        {},
        QuestionsRuntime(
            folder=folder,
            environment=SUITE_ASKER,
            suite=name,
            python=str(ensure(SUITE_ASKER, machine, settings, progress).python),
        ),
        settings.store,
    )
    with TemporaryDirectory() as made:
        context: StageContext[QuestionsParameters, QuestionsRuntime] = StageContext(
            spec, Path(made), Store(settings.store), progress
        )
        parameters = QUESTIONS.parameters_of(spec)
        online = source.identity.kind == "hub" or source.identity.dataset
        return context.run_worker(
            "eval_gates.first_prompt_worker",
            {
                "suite": parameters.suite.model_dump(),
                "source": source.identity.model_dump(),
                "seed": QUESTION_SEED,
                "folder": folder,
                "url": "",
                "model": "",
                "tokenizer": str(checkpoint),
                "trust_remote_code": False,
                "concurrency": 1,
                "max_length": 0,
                "asks_once": False,
            },
            plugins=[for_worker(parameters.suite)],
            needs=[NetworkAccess.HUB] if online else [],
        )

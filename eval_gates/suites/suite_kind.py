"""Interface of a kind of suite: settings, sources, questions and scores.

A kind is a subclass of :class:`SuiteKind`, found by its entry point in the group `prepare.suites`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, create_model

from eval_gates.ask import Client
from eval_gates.quality_result import GroupReport, report_parts
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply, Score
from eval_gates.statistics.parts import Partition, split_by_group
from eval_gates.suites.sources import HubBenchmark, QuestionSource, SourcedKind
from prepare.errors import PrepareError, UsageError
from prepare.events import Progress
from prepare.plugins import SUITES, find_plugin, load_class
from prepare.record import Record
from recipes.generation import Generation
from recipes.policy import SOURCES, EvalTask, Policy, Source, Suite, SuiteModels

Task = TypeVar("Task", bound=EvalTask)
Read = tuple[list[Question], dict[str, Any]]
"""Questions, and facts for the record. `choices` of the facts: by question's id, each choice's text
and its score; from them follows what guessing scores."""
Render = Callable[..., str]
"""Renders a list of messages as a prompt, in the served model's chat template."""


class ChatNeed(Enum):
    """Need of the server's chat API."""

    NONE = "none"
    CHAT = "chat"
    TOOLS = "tools"


@dataclass(frozen=True)
class QuestionOrder:
    """Where a suite's questions are."""

    source: QuestionSource
    folder: Path | None  # of --eval-data, or of an lm-eval task's YAML file
    output: Path  # existing; for what serving needs in addition to the questions
    progress: Progress


class LoggedAnswers(Record):
    """What the answers of a log, or recorded ones, show before anything is asked."""

    shares: dict[str, float] = Field(
        description="of the clusters that each further gate is about, by its name, where known"
    )
    empty: list[float] = Field(
        description="by cluster, the share of its questions that an empty answer answers alike"
    )
    tools: dict[str, int] = Field(description="by tool that they call, the number of clusters")


FEW_SAMPLES = 8


class SuiteKind(SourcedKind, SuiteModels, Generic[Task]):
    """Kind of suite; a subclass sets `task`, and writes `questions`, `score` and `metric`.

    Its keys in a policy are those of `task` and `decision`; its docstring describes them.
    """

    decision: type[Suite] = Suite
    sources: tuple[Source, ...] = ("eval-data",)  # of a policy that names none
    guessing: float = 0.0  # least score of a model that picks answers by chance
    assumed_baseline: float = 0.5  # mean score that gates are planned with
    # Each answer has its score on another question: graded texts.
    scores_unrelated: bool = False
    benchmark: HubBenchmark | None = None
    # A variant's questions include the baseline's answers.
    reads_baseline: bool = False
    # The baseline's answers are compared with those of another start of it.
    asks_baseline_twice: bool = False
    # An answer that was cut off is scored as well as a whole one: summaries have one length.
    reads_cut_off: bool = False
    # Group of the questions that the suite's own gate counts, of which each cluster has one; None:
    # all. The others are of further gates.
    judged_group: str | None = None
    # Logs repeat: a copy is left out, however many there are.
    may_repeat: bool = False
    # Own keys with texts, which are stored apart from bundled answers.
    private_keys: tuple[str, ...] = ()
    # Whether a bundle has all files that `open` reads: it lacks private texts and data sets.
    is_whole_in_bundle: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "task" in vars(cls):
            bases: Any = (cls.task, cls.decision)
            cls.policy = create_model(
                cls.task.__name__.replace("Task", "Suite"),
                __base__=bases,
                __doc__=cls.__doc__,
                __module__=cls.__module__,
                sources=(
                    list[Source],
                    Field(default=list(cls.sources), description=SOURCES),
                ),
            )

    @abstractmethod
    def questions(self, task: Task, order: QuestionOrder) -> Read:
        """Return all questions of the source; runs in the `evaluate` environment.

        EvaluationDataError for none or malformed ones.
        """

    def known_questions(self, task: Task, order: QuestionOrder) -> list[Question]:
        """Return a folder's questions as far as they are known; EvaluationDataError as above.

        It runs before the environments are built. A kind whose `questions` imports packages of
        `evaluate` overrides this.
        """
        questions, _ = self.questions(task, order)
        return questions

    def logged_answers(
        self, task: Task, questions: Sequence[Question], order: QuestionOrder
    ) -> LoggedAnswers | None:
        """Return what the answers in the source itself show of these known questions, if any."""
        return None

    def recorded_answers(self, task: Task, rows: Sequence[Answer]) -> LoggedAnswers | None:
        """Return what recorded answers show of the turns that further gates are about, if any."""
        return None

    def open(self, task: Task, questions: Sequence[Question], folder: Path) -> None:
        """Read what rendering and scoring need; runs in `evaluate`, with all laid-out questions.

        EvaluationDataError for changed questions, SandboxError if programs cannot be isolated.
        """

    def render(self, task: Task, question: Question, template: Render | None) -> Question:
        """Return the question as it is asked."""
        return question

    def settings(self, task: Task) -> dict[str, Any]:
        """Return :data:`eval_gates.ask.Settings`."""
        return {"until": ["\n"], "max_gen_toks": 64}

    def ask(
        self,
        task: Task,
        client: Client,
        batch: Sequence[Question],
        baseline: Mapping[str, Answer] | None,
    ) -> list[list[Reply]]:
        """Return the replies to a batch, in order; raises as :meth:`Client.ask`.

        `baseline` has its rows by id, if the suite reads them.
        """
        return client.ask(batch)

    @abstractmethod
    def score(self, task: Task, question: Question, replies: Sequence[Reply]) -> Score:
        """Return one question's score."""

    def score_batch(
        self, task: Task, batch: Sequence[AnsweredQuestion], progress: Progress
    ) -> list[Score]:
        """Return :meth:`score` of each."""
        return [self.score(task, asked.question, asked.replies) for asked in batch]

    @abstractmethod
    def metric(self, task: Task, laid_out: str | None) -> str:
        """Return the score's standard name; `laid_out` is the recorded metric."""

    def chat_need(self, task: Task) -> ChatNeed:
        """Return the task's need."""
        return ChatNeed.NONE

    def takes_thoughts(self, task: Task) -> bool:
        """Return whether an answer that begins with a thought is scored as it should be."""
        thinking = getattr(task, "thinking", None)
        return bool(getattr(thinking, "keep", False))

    def example_chat(self, task: Task) -> dict[str, Any]:
        """Return typical `messages`, and `tools` if any."""
        return {"messages": [{"role": "user", "content": "Hello"}]}

    def typical_change(self, task: Task) -> float:
        """Return the typical size of a change, under 1 for graded scores."""
        if not isinstance(task, Generation) or task.samples == 1:
            return 1.0
        # 16 samples: a standard deviation of 0.2 if 55 % of the scores change. 4: half an answer.
        return 0.27 if task.samples > FEW_SAMPLES else 0.5

    def check_machine(self, task: Task) -> None:
        """Raise PrepareError if this machine cannot score."""

    def known_cluster(
        self, task: Task, identity: QuestionSource, folder: Path | None
    ) -> str | None:
        """Return a shared field that is known before laying out."""
        return None

    def fit(self, name: str, task: Task, max_length: int, note: Callable[[str], None]) -> Task:
        """Return the task without questions that are longer than the served model takes.

        `note` receives what was left out. UsageError if nothing is left.
        """
        return task

    def choice_values(
        self, task: Task, likelihoods: Sequence[float], choices: Sequence[str]
    ) -> list[float]:
        """Return values; the largest is chosen."""
        return list(likelihoods)

    def depth(self, answer: Answer) -> int | None:
        """Return how many tokens the answer follows, where known (`eval_gates/depth.py`)."""
        return None

    def partitions(
        self, baseline: Sequence[Answer], candidate: Sequence[Answer]
    ) -> Sequence[Partition]:
        """Return the answers by subject, task or ability, in each way that splits them.

        A variant that loses one of these parts does not pass.
        """
        return split_by_group(baseline, candidate)

    def groups(self, baseline: Sequence[Answer], candidate: Sequence[Answer]) -> list[GroupReport]:
        """Return the scores of these parts, if any, and of others that decide nothing."""
        partitions = self.partitions(baseline, candidate)
        return [report for parts in partitions for report in report_parts(parts, "part")]


def kind_named(name: str) -> SuiteKind[Any]:
    """Return a kind; raises as :func:`load_class`."""
    kind: type[SuiteKind[Any]] = load_class(SUITES, name, SuiteKind)
    return kind()


def kind_of(task: EvalTask) -> SuiteKind[Any]:
    """Return a task's kind."""
    return kind_named(task.kind)


def without_uncontained(policy: Policy) -> tuple[Policy, list[str]]:
    """Return the policy without optional suites that cannot be scored here, and why.

    SandboxError if none is left.
    """
    reasons: dict[str, PrepareError] = {}
    for name, suite in policy.suites.items():
        if getattr(suite, "if_no_sandbox", "") == "skip":
            try:
                kind_of(suite).check_machine(suite)
            except PrepareError as error:
                reasons[name] = error
    left = {name: suite for name, suite in policy.suites.items() if name not in reasons}
    if not left:
        raise next(iter(reasons.values()))
    notes = [
        f"{name} is not run, as the policy allows: {why.message}" for name, why in reasons.items()
    ]
    return policy.model_copy(update={"suites": left}), notes


def refuse_untried(policy: Policy, what: str, where: str) -> None:
    """Raise UsageError if a suite reads log-probabilities of prompts.

    `where` is the option that asks for `what`.
    """
    for name, suite in policy.suites.items():
        if kind_of(suite).reads_baseline:
            raise UsageError(
                f"the suite '{name}' needs log-probabilities of prompts, which are untried with "
                f"{what}",
                where=f"{where}; policy key suites.{name}",
                hint="serve without that; or, where no record has the policy, remove the suite "
                "from it",
            )


def for_worker(task: EvalTask) -> dict[str, str]:
    """Return how a worker imports the kind."""
    return find_plugin(SUITES, task.kind).for_worker()

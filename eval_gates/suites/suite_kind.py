"""Interface of a kind of suite: settings, sources, questions and scores.

A kind is a subclass of :class:`SuiteKind`, found by its entry point in the group `prepare.suites`.
The core and the `evaluate` workers import its module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from eval_gates.ask import Client
from eval_gates.quality_result import GroupReport
from eval_gates.rows import GROUP, Answer, Asked, Question, Reply
from eval_gates.suites.json_lines import data_lines, find_files, read_rows
from eval_gates.suites.question_source import QuestionSource
from pipeline.core.digest import digest_json
from pipeline.core.errors import EvaluationDataError, PrepareError, UsageError
from pipeline.core.events import Progress
from pipeline.core.plugins import SUITES, find_plugin, load_class
from recipes.generation import Generation
from recipes.policy import EvalTask, Policy, Suite, SuiteModels

Task = TypeVar("Task", bound=EvalTask)
Row = dict[str, Any]
Rows = list[Row]
Read = tuple[list[Question], dict[str, Any]]
"""Questions, and facts for the record. `choices` of the facts: by question's id, each choice's text
and its score; from them follows what guessing scores."""
Render = Callable[..., str]
"""Renders a list of messages as a prompt, in the served model's chat template."""


class ChatNeed(Enum):
    """What a suite needs of the server's chat API."""

    NONE = "none"
    CHAT = "chat"
    TOOLS = "tools"


@dataclass(frozen=True)
class SuiteSource:
    """Available source of a suite's questions."""

    identity: QuestionSource  # part of the stage's key
    folder: Path | None = None  # not part of it
    questions: int | None = None  # None where only reading them would show
    clusters: int | None = None  # likewise, if the suite has clusters


class SourceLookup(Protocol):
    """The run's facts for finding a source."""

    @property
    def eval_data(self) -> Path | None: ...

    @property
    def environment(self) -> str:
        """Identity of `evaluate`, whose packages contain questions."""

    def digest_of(self, file: Path) -> str:
        pass

    def revision_of(self, dataset: str) -> str | None:
        """Return the dataset's newest commit; None without the Hub."""

    def note(self, text: str) -> None: ...


class HubBenchmark(NamedTuple):
    """A benchmark's name on the Hub's leaderboards."""

    dataset: str
    task: str
    title: str
    questions: int  # of the whole benchmark


class HubQuestions(NamedTuple):
    """Hub dataset, and its number of questions for planning."""

    source: QuestionSource
    questions: int

    def benchmark(self, title: str) -> HubBenchmark:
        """Return the benchmark of all questions."""
        return HubBenchmark(str(self.source.id), str(self.source.config), title, self.questions)


@dataclass(frozen=True)
class QuestionOrder:
    """Input of laying out."""

    source: QuestionSource
    folder: Path | None  # of --eval-data, or of an lm-eval task's YAML file
    output: Path  # existing; for what serving needs in addition to the questions
    progress: Progress


class SuiteKind(SuiteModels, Generic[Task]):
    """Kind of suite; a subclass sets `task` and `policy`, and writes `questions` and `score`."""

    folder_stem: str = ""  # how the names of its files in a folder of evaluation data begin
    examples_stem: str | None = None  # of files there that hold worked examples
    other_stem: str | None = None  # of files there that belong to another suite
    hub: HubQuestions | None = None
    packaged: int | None = None  # questions that the packages of `evaluate` carry
    carried: Path | None = None  # the project's own questions
    guessing: float = 0.0  # least score of a model that picks answers by chance
    assumed_baseline: float = 0.5  # mean score that a recovery margin is planned with
    # Each row has `unrelated`, its answer's score on another question: graded texts.
    scores_unrelated: bool = False
    benchmark: HubBenchmark | None = None
    # A variant's questions include the baseline's answers.
    reads_baseline: bool = False
    # Keys with texts, which are stored apart from bundled rows.
    private_keys: tuple[str, ...] = ()

    @abstractmethod
    def questions(self, task: Task, order: QuestionOrder) -> Read:
        """Return all questions of the source; runs in the `evaluate` environment.

        EvaluationDataError if there are none, or they are malformed.
        """

    def open(self, task: Task, questions: Sequence[Question], folder: Path) -> None:
        """Read what rendering and scoring need; runs in `evaluate`, with all laid-out questions.

        Raises:
            EvaluationDataError: the questions are not those that were laid out.
            SandboxError: programs cannot be isolated as the policy requires.
        """

    def render(self, task: Task, question: Question, template: Render | None) -> Question:
        """Return the question as it is asked; `template` is the chat template, if one is used."""
        return question

    def settings(self, task: Task) -> dict[str, Any]:
        """Return how texts are generated, as :data:`eval_gates.ask.Settings`."""
        return {"until": ["\n"], "max_gen_toks": 64}

    def ask(
        self,
        task: Task,
        client: Client,
        batch: Sequence[Question],
        baseline: Mapping[str, Answer] | None,
    ) -> list[list[Reply]]:
        """Return the replies to a batch, in order; raises as :meth:`Client.ask`.

        `baseline` has its rows by id, private keys included, if the suite reads them for a variant.
        """
        return client.ask(batch)

    def score(self, task: Task, question: Question, replies: Sequence[Reply]) -> Answer:
        """Return the key `score`, 0 to 1, and the suite's own keys."""
        raise NotImplementedError

    def score_batch(self, task: Task, batch: Sequence[Asked], progress: Progress) -> list[Answer]:
        """Return :meth:`score` of a batch, in order."""
        return [self.score(task, each.question, each.replies) for each in batch]

    @abstractmethod
    def metric(self, task: Task, laid_out: str | None) -> str:
        """Return the score's standard name; `laid_out` is the metric in the record, if any."""

    def chat_need(self, task: Task) -> ChatNeed:
        """Return what the task needs of the chat API, if anything."""
        return ChatNeed.NONE

    def example_chat(self, task: Task) -> dict[str, Any]:
        """Return `messages`, and `tools` if any, as the suite's questions have them."""
        return {"messages": [{"role": "user", "content": "Hello"}]}

    def typical_change(self, task: Task) -> float:
        """Return the typical size of a score's change, under 1 for graded scores."""
        # Several samples: a standard deviation of 0.2 if 55 % of the questions' scores change.
        return 0.27 if isinstance(task, Generation) and task.samples > 1 else 1.0

    def check_machine(self, task: Task) -> None:
        """Raise PrepareError if this machine cannot score the answers."""

    def known_cluster(self, task: Task) -> str | None:
        """Return a shared field that is known before laying out."""
        return None

    def estimate(self, task: Task) -> int | None:
        """Return a number of questions for planning, if laying out may differ."""
        return None

    def fit(self, name: str, task: Task, max_length: int, note: Callable[[str], None]) -> Task:
        """Return the task without questions that are longer than the served model takes.

        Args:
            max_length: tokens of prompt and answer.
            note: receives what was left out.

        Raises:
            UsageError: all of them are longer.
        """
        return task

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        """Return the suite's first available source.

        EvaluationDataError if none is available, or a local file is damaged.
        """
        is_missed = False
        for source in suite.sources:
            found = self._try(source, suite, lookup)
            if found is not None:
                if is_missed:
                    lookup.note(f"{name}: its questions are those of the source '{source}'")
                return found
            if source == "eval-data" and lookup.eval_data is not None:
                stem = self.folder_stem
                lookup.note(
                    f"{name}: {lookup.eval_data} has no "
                    f"{f'{stem}*.jsonl[.gz]' if stem else 'file'} for it; looking elsewhere"
                )
                is_missed = True
            if source == "hub":
                lookup.note(f"{name}: the Hub cannot be reached; looking elsewhere")
                is_missed = True
        raise EvaluationDataError(
            f"no source has questions for the suite '{name}'",
            where=f"policy key suites.{name}.sources: {', '.join(suite.sources)}",
            hint="give a folder with --eval-data (docs/how-to/suites.md says what it holds), "
            "or run where the Hub can be reached",
        )

    def count(self, suite: Suite, identity: QuestionSource, folder: Path | None) -> int | None:
        """Return a source's number of questions, if known without laying out."""
        if identity.kind == "hub":
            return self.hub.questions if self.hub else None
        if identity.kind == "packages":
            return self.packaged
        files = self.local_files(suite, identity, folder)
        number = sum(1 for path in files for line in data_lines(path) if line.strip())
        if not number:
            raise EvaluationDataError(
                "there are no questions in the evaluation data",
                where=", ".join(str(path) for path in files) or str(folder),
                hint="write one question a line (docs/how-to/suites.md has the keys), or remove "
                "the file so that another source is used",
            )
        return number

    def count_clusters(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> int | None:
        """Return a source's number of clusters, if known without laying out."""
        files, field = self.local_files(suite, identity, folder), str(suite.cluster_by)
        rows = [row for path in files for _, row in read_rows(path)]
        if not rows or any(field not in row for row in rows):
            return None
        return len({digest_json(row[field]) for row in rows})

    def local_files(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> list[Path]:
        """Return the local files whose lines are the questions, if any."""
        if identity.kind == "builtin" and self.carried is not None:
            return [self.carried]
        return self.folder_files(folder) if folder is not None else []

    def folder_files(self, folder: Path) -> list[Path]:
        """Return a folder's files of questions of this kind.

        EvaluationDataError for a file that is there both plain and gzipped.
        """
        if not self.folder_stem:
            return []
        but_not = (self.examples_stem, self.other_stem)
        return find_files(folder, self.folder_stem, but_not=but_not)

    def _try(self, source: str, suite: Suite, lookup: SourceLookup) -> SuiteSource | None:
        identity, folder = self._identify(source, suite, lookup)
        if identity is None:
            return None
        clusters = self.count_clusters(suite, identity, folder) if suite.cluster_by else None
        return SuiteSource(identity, folder, self.count(suite, identity, folder), clusters)

    def _identify(
        self, source: str, suite: Suite, lookup: SourceLookup
    ) -> tuple[QuestionSource | None, Path | None]:
        folder = lookup.eval_data
        if source == "eval-data" and folder is not None and self.folder_files(folder):
            files = find_files(folder, self.folder_stem, but_not=(self.other_stem,))
            digest = digest_json([[path.name, lookup.digest_of(path)] for path in files])
            return QuestionSource(kind="folder", digest=digest), folder
        if source == "hub" and self.hub is not None:
            revision = lookup.revision_of(str(self.hub.source.id))
            if revision is not None:
                return self.hub.source.model_copy(update={"revision": revision}), None
        if source == "packages" and self.packaged is not None:
            return QuestionSource(kind="packages", environment=lookup.environment), None
        if source == "builtin" and self.carried is not None:
            return QuestionSource(kind="builtin", digest=lookup.digest_of(self.carried)), None
        return None, None

    def title(self, task: Task) -> str | None:
        """Return the questions' name in a model card, other than the policy's."""
        return None

    def choice_values(
        self, task: Task, likelihoods: Sequence[float], choices: Sequence[str]
    ) -> list[float]:
        """Return each choice's value; the largest is chosen."""
        return list(likelihoods)

    def groups(
        self, baseline: Iterable[Mapping[str, Any]], candidate: Iterable[Mapping[str, Any]]
    ) -> list[GroupReport]:
        """Return the scores of subjects or members, if rows have a group."""
        rows = list(baseline), list(candidate)
        named = all(GROUP in row for row in rows[0])
        return report_groups(*rows, lambda row: str(row[GROUP])) if named else []


def report_groups(
    baseline: Iterable[Mapping[str, Any]],
    candidate: Iterable[Mapping[str, Any]],
    group_of: Callable[[Mapping[str, Any]], str],
    order: Sequence[str] = (),
    *,
    is_subject: bool = True,
) -> list[GroupReport]:
    """Return both sides' mean scores and flips by group, over the same questions.

    `order` has the known groups; others follow by name.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    for before, after in zip(baseline, candidate, strict=True):
        scores = float(before["score"]), float(after["score"])
        pairs.setdefault(group_of(before), []).append(scores)
    return [
        GroupReport(
            group=name,
            is_subject=is_subject,
            n=len(pairs[name]),
            baseline=sum(before for before, _ in pairs[name]) / len(pairs[name]),
            candidate=sum(after for _, after in pairs[name]) / len(pairs[name]),
            flips=sum(before != after for before, after in pairs[name]),
        )
        for name in [*order, *sorted(pairs.keys() - set(order))]
        if name in pairs
    ]


def kind_named(name: str) -> SuiteKind[Any]:
    """Return the kind of that name; raises as :func:`load_class`."""
    found: type[SuiteKind[Any]] = load_class(SUITES, name, SuiteKind)
    return found()


def kind_of(task: EvalTask) -> SuiteKind[Any]:
    """Return the kind of a policy's suite or of a task."""
    return kind_named(task.kind)


def without_uncontained(policy: Policy) -> tuple[Policy, list[str]]:
    """Return the policy without optional suites that cannot be scored here, and why.

    SandboxError if no other suite is left.
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

    Args:
        what: an arm without such tests.
        where: the option or key that asks for it.
    """
    for name, suite in policy.suites.items():
        if kind_of(suite).reads_baseline:
            raise UsageError(
                f"the suite '{name}' needs log-probabilities of prompts, which are untried with "
                f"{what}",
                where=f"{where}; policy key suites.{name}",
                hint="remove the suite from the policy, or serve without that",
            )


def for_worker(task: EvalTask) -> dict[str, str]:
    """Return how a worker imports the suite's kind."""
    return find_plugin(SUITES, task.kind).for_worker()

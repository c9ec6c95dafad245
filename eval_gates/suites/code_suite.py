"""Suites of model-written programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, field_validator, model_validator

from eval_gates.rows import AnsweredQuestion, Question, Reply, Score, unwrap
from eval_gates.sandbox import Program, check_sandbox, run_many
from eval_gates.suites.code_extraction import STOPS, ExtractedCode, extract_code
from eval_gates.suites.generation import GeneratingKind, GeneratingTask, is_unsolved
from eval_gates.suites.json_lines import FIELDS
from eval_gates.suites.sources import QuestionSource
from prepare.errors import EvaluationDataError
from prepare.events import NullProgress, Progress
from recipes.generation import MaxTokens
from recipes.policy import Suite

UNFINISHED = "unfinished"
"""Outcome of an answer whose program was not run: it was cut off, or its thoughts have no end."""

_REQUEST = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```\n"
)


class CodeTask(GeneratingTask):
    """Functions to write, their number, and limits of their tests."""

    max_tokens: MaxTokens = 512
    k: int = Field(1, ge=1, le=1_000, description="the metric is pass@k, by the unbiased estimator")
    seconds_per_problem: float = Field(10, ge=0.1, le=3_600)
    memory_mb_per_problem: int = Field(1024, ge=64, le=1_048_576)
    problems: list[str] = Field(
        default=[], max_length=10_000, description="task ids; all when empty"
    )

    @model_validator(mode="after")
    def _samples_suffice(self) -> CodeTask:
        if self.k > self.samples:
            raise ValueError(f"pass@{self.k} needs at least {self.k} samples, not {self.samples}")
        return self

    @field_validator("problems")
    @classmethod
    def _problems_differ(cls, problems: list[str]) -> list[str]:
        for name, times in Counter(problems).items():
            if times > 1:
                raise ValueError(f"'{name}' occurs twice, and would count as two problems")
        return problems


class CodeDecision(Suite):
    """Settings where nothing can contain model-written code."""

    if_no_sandbox: Literal["refuse", "skip"] = Field(
        "refuse",
        description="where model-written code cannot be contained: refuse the run, or leave the "
        "suite out and say so",
    )


Code = TypeVar("Code", bound=CodeTask)


class Problem(NamedTuple):
    """Problem whose `test` raises for a wrong solution."""

    task_id: str
    header: str
    entry_point: str
    test: str


class CodeKind(GeneratingKind[Code]):
    """Suite of programs; a subclass implements `questions`."""

    decision = CodeDecision
    stops = STOPS

    def open(self, task: Code, questions: Sequence[Question], folder: Path) -> None:
        check_sandbox()

    def score(self, task: Code, question: Question, replies: Sequence[Reply]) -> Score:
        return self.score_batch(
            task, [AnsweredQuestion(question, replies, question)], NullProgress()
        )[0]

    def score_batch(
        self, task: Code, batch: Sequence[AnsweredQuestion], progress: Progress
    ) -> list[Score]:
        """Run the tests; a problem's score is its pass@k."""
        problems = [problem_of(asked.question) for asked in batch]
        codes: list[list[ExtractedCode | None]] = [
            [
                None
                if is_unsolved(task, reply)
                else extract_code(
                    reply.text, problem.header, problem.entry_point, task.prompt_format
                )
                for reply in asked.replies
            ]
            for problem, asked in zip(problems, batch, strict=True)
        ]
        executions = iter(
            run_many(
                [
                    Program(code.code, problem.test)
                    for problem, drawn in zip(problems, codes, strict=True)
                    for code in drawn
                    if code is not None
                ],
                seconds=task.seconds_per_problem,
                memory_bytes=task.memory_mb_per_problem * 2**20,
                progress=progress,
            )
        )
        scores: list[Score] = []
        for drawn in codes:
            ran = [None if code is None else next(executions) for code in drawn]
            passed = sum(execution is not None and execution.passed for execution in ran)
            scores.append(
                Score(
                    pass_at_k(len(ran), passed, task.k),
                    unread=sum(code is None or not code.is_found for code in drawn),
                    own={
                        "code": unwrap([code.code if code else "" for code in drawn]),
                        "outcome": unwrap(
                            [execution.outcome if execution else UNFINISHED for execution in ran]
                        ),
                        "detail": unwrap(
                            [execution.detail if execution else "" for execution in ran]
                        ),
                    },
                )
            )
        return scores

    def takes_thoughts(self, task: Code) -> bool:
        # `extract_code` skips them.
        return task.prompt_format != "completion" or super().takes_thoughts(task)

    def metric(self, task: Code, laid_out: str | None) -> str:
        return f"pass@{task.k}"

    def check_machine(self, task: Code) -> None:
        check_sandbox()

    def count(self, suite: Suite, identity: QuestionSource) -> int | None:
        problems = getattr(suite, "problems", None)
        return len(problems) if problems else super().count(suite, identity)


def lay_out(
    task: CodeTask,
    problems: list[Problem],
    benchmark: str,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Question]:
    """Return problems with prompts; `rows` are those of their file, by the problem's id."""
    named = {problem.task_id: problem for problem in problems}
    unknown = [name for name in task.problems if name not in named]
    if unknown:
        raise EvaluationDataError(
            f"{benchmark} has no problem '{unknown[0]}'",
            where=f"policy key suites.{task.kind}.problems",
            hint=f"ids are {problems[0].task_id} to {problems[-1].task_id}",
        )
    questions = list[Question]()
    for problem in [named[name] for name in task.problems] or problems:
        data = problem._asdict()
        if task.reads_fields and rows is not None:
            data[FIELDS] = rows.get(problem.task_id, {})
        questions.append(
            Question(problem.task_id, prompt_of(problem, task.prompt_format), data=data)
        )
    return questions


def problem_of(question: Question) -> Problem:
    """Return a laid-out problem."""
    return Problem(*(question.data[key] for key in Problem._fields))


def prompt_of(problem: Problem, form: str) -> str:
    """Return a function header, or a user's message."""
    return problem.header if form == "completion" else _REQUEST.format(prompt=problem.header)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate that one of k samples is correct: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), section 2.1; n `samples`, c `correct`.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right in {samples} samples has no meaning")
    return 1 - comb(samples - correct, k) / comb(samples, k)

"""Tool calls: BFCL's single-turn cases, or a user's in its form, scored by its checker.

`form: prompt` lists the functions in the system prompt and reads calls from the text.
`form: server` sends OpenAI tools, and the server's tool-call parser reads the calls.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from eval_gates.chance_baselines import EMPTY
from eval_gates.limited_call import CallError, LimitError, call_limited, grade_all
from eval_gates.suites.answer_rows import common_fields, texts_of
from eval_gates.suites.bfcl import (
    CATEGORIES,
    FUNCTION_LISTS,
    BfclCase,
    CallForm,
    Calls,
    decode,
    is_right,
    openai_tools,
    prompt_messages,
    read_category,
    right_calls,
)
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.generated_text import GeneratedText, ToolCall
from eval_gates.suites.generation import (
    GeneratingTask,
    generated_fields,
    is_unsolved,
    mean,
    task_config,
)
from eval_gates.suites.group_scores import GROUP
from eval_gates.suites.json_lines import rows_of_files
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import (
    ChatNeed,
    QuestionOrder,
    Read,
    Row,
    Rows,
    SuiteKind,
    SuiteTask,
)
from eval_gates.suites.template import render
from pipeline.core.errors import EvaluationDataError
from pipeline.core.events import Progress
from recipes.generation import MaxTokens
from recipes.policy import Source, Suite

STEM = "tools"
Category = Literal[
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
]
TEMPLATE = (
    "{% for message in question %}{{message.role}}: {{message.content}}\n\n{% endfor %}assistant:"
)
STOPS: dict[str, list[str]] = {"completion": ["\n\n", "\nuser:"], "chat": []}

_FIELDS = (
    "each line needs question (a text or a list of messages), function (a list of functions with "
    "name, description and parameters) and ground_truth (a list of calls, empty where none is "
    "right, with a list of allowed values for each parameter), as BFCL's files"
)


class ToolsTask(GeneratingTask):
    """Requests that need calls of given functions, or none."""

    kind: Literal["tools"] = "tools"
    max_tokens: MaxTokens = 512
    form: CallForm = Field(
        "prompt",
        description="prompt: functions in the system prompt, calls read from the text. server: "
        "OpenAI tools, calls read by the server's tool-call parser",
    )
    categories: list[Category] = Field(
        default=[], max_length=len(CATEGORIES), description="of BFCL; all 13 when empty"
    )

    @field_validator("categories")
    @classmethod
    def _categories_differ(cls, categories: list[Category]) -> list[Category]:
        if len(set(categories)) < len(categories):
            raise ValueError("a category occurs twice")
        return categories

    @model_validator(mode="after")
    def _server_by_chat(self) -> ToolsTask:
        if self.form == "server" and self.prompt_format == "completion":
            raise ValueError("'form: server' is asked by the chat API: take 'prompt_format: chat'")
        return self


class ToolsSuite(ToolsTask, Suite):
    """BFCL's single-turn tool calls."""

    sources: list[Source] = Field(default=["eval-data", "packages"])


class Tools(SuiteKind[ToolsTask]):
    """The suite `tools`."""

    task, policy = ToolsTask, ToolsSuite
    folder_stem, packaged = STEM, sum(CATEGORIES.values())

    def count(self, suite: Suite, identity: QuestionSource, folder: Path | None) -> int | None:
        categories = suite.categories if isinstance(suite, ToolsSuite) else []
        if identity.kind == "packages" and categories:
            return sum(CATEGORIES[name] for name in categories)
        return super().count(suite, identity, folder)

    def count_clusters(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> int | None:
        categories = suite.categories if isinstance(suite, ToolsSuite) else []
        if identity.kind == "packages":
            is_all = not categories and suite.cluster_by == "functions"
            return FUNCTION_LISTS if is_all else None
        return super().count_clusters(suite, identity, folder)

    def known_cluster(self, task: ToolsTask) -> str | None:
        # Half of the live cases share their functions with others.
        live = any(name.startswith("live_") for name in task.categories)
        return "functions" if live or not task.categories else None

    def read(self, task: ToolsTask, order: QuestionOrder) -> Read:
        if order.folder:
            found = [
                _own_case(row, n, place)
                for n, (place, row) in enumerate(rows_of_files(order.folder, STEM))
            ]
        else:
            found = [c for name in task.categories or CATEGORIES for c in read_category(name)]
        return [_question(case, task) for case in found], {}

    def open(self, task: ToolsTask, questions: Rows, folder: Path) -> SuiteTask:
        config = task_config(task, TEMPLATE, STOPS[task.prompt_format])
        chat_of = _chat_request if task.prompt_format == "chat" else None
        asked = task_of(config, questions, task.samples, chat_of)
        rows_of = partial(answer_rows, task)
        return SuiteTask(asked, self.metric(task, None), rows_of, task.samples)

    def chat_need(self, task: ToolsTask) -> ChatNeed:
        if task.form == "server":
            return ChatNeed.TOOLS
        return ChatNeed.CHAT if task.prompt_format == "chat" else ChatNeed.NONE

    def metric(self, task: ToolsTask, laid_out: str | None) -> str:
        return "ast_acc"

    def prompt(self, task: ToolsTask, question: Row) -> str:
        return render(TEMPLATE, question)

    def expected(self, task: ToolsTask, question: Row) -> str:
        return json.dumps(right_calls(question["ground_truth"]), ensure_ascii=False)


def answer_rows(task: ToolsTask, questions: Rows, samples: Rows, progress: Progress) -> Rows:
    """Return rows whose score is the share of the samples that BFCL's checker accepts."""
    rows = []
    for question, sample in zip(questions, samples, strict=True):
        case, texts = BfclCase(**{key: question[key] for key in BfclCase._fields}), texts_of(sample)

        def score(text: GeneratedText, case: BfclCase = case) -> float:
            return float(is_right(case, calls_in(text, case.category, task.form), task.form))

        unsolved = [is_unsolved(task, text) for text in texts]
        *scores, empty = grade_all([partial(score, t) for t in (*texts, GeneratedText(""))], 0.0)
        row = {
            **common_fields(question, sample),
            **generated_fields(task, sample),
            "score": mean([0.0 if no else each for no, each in zip(unsolved, scores, strict=True)]),
            EMPTY: empty,
            GROUP: case.category,
        }
        if task.form == "server":
            row["calls"] = [[call._asdict() for call in text.tool_calls] for text in texts]
        rows.append(row)
    return rows


def calls_in(text: GeneratedText, category: str, form: CallForm) -> Calls | None:
    """Return the calls of an answer; None if it is not a list of calls."""
    if form == "prompt":
        return decode(text, category)
    try:
        return [_arguments_read(call) for call in text.tool_calls] or None
    except (ValueError, RecursionError):
        return None


def _arguments_read(call: ToolCall) -> dict[str, Any]:
    return {call.name: json.loads(call.arguments or "{}")}


def _question(case: BfclCase, task: ToolsTask) -> Row:
    """Return the row of a case: `question` is what is asked, `request` its tools."""
    asked = prompt_messages(case) if task.form == "prompt" else case.messages
    tools = {"request": json.dumps(openai_tools(case))} if task.form == "server" else {}
    return {**case._asdict(), "question": asked, **tools}


def _chat_request(question: Row) -> dict[str, Any]:
    tools = json.loads(question.get("request", "[]"))
    return {"messages": question["question"], **({"tools": tools} if tools else {})}


def _own_case(row: Row, number: int, place: str) -> BfclCase:
    """Return the case of a user's row.

    Raises:
        EvaluationDataError: a key is malformed, or BFCL's checker refuses the row's own calls.
    """
    functions, truth = (_objects(row, key, place) for key in ("function", "ground_truth"))
    category = ("irrelevance", "simple", "parallel")[min(len(truth), 2)]
    if category == "simple" and len(functions) > 1:
        category = "multiple"
    name = str(row.get("id") or f"request/{number}")
    case = BfclCase(name, category, _messages(row.get("question"), place), functions, truth)
    try:
        fits = call_limited(lambda: _is_usable(case))
    except (LimitError, CallError) as error:
        raise EvaluationDataError(
            f"'function' cannot be described: {error}"[:300],
            where=place,
            hint=_FIELDS,
        ) from error
    if not fits:
        raise EvaluationDataError(
            "BFCL's checker refuses the first values of 'ground_truth'",
            where=place,
            hint=f"correct types, names and required parameters; {_FIELDS}",
        )
    return case


def _is_usable(case: BfclCase) -> bool:
    prompt_messages(case), openai_tools(case)
    truth = case.ground_truth
    return not truth or is_right(case, right_calls(truth), "prompt")


def _objects(row: Row, key: str, place: str) -> list[dict[str, Any]]:
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        problem = "is missing" if key not in row else "is not a list of objects"
        raise EvaluationDataError(f"'{key}' {problem}", where=place, hint=_FIELDS)
    return value


def _messages(question: Any, place: str) -> list[dict[str, str]]:
    if isinstance(question, str) and question.strip():
        return [{"role": "user", "content": question}]
    if isinstance(question, list) and len(question) == 1 and isinstance(question[0], list):
        question = question[0]  # BFCL's: a list of turns
    if (
        not isinstance(question, list)
        or not question
        or not all(
            isinstance(message, dict)
            and message.keys() == {"role", "content"}
            and all(isinstance(text, str) for text in message.values())
            for message in question
        )
    ):
        raise EvaluationDataError(
            "'question' is neither a text nor a list of messages with role and content",
            where=place,
            hint=_FIELDS,
        )
    return question

"""Tool calls: BFCL's single-turn cases, or a user's in its form, scored by its checker.

`form: prompt` reads calls from the text, with functions in the system prompt. `form: server` sends
OpenAI tools, and the server's parser reads the calls.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from eval_gates.reply_forms import unescape
from eval_gates.rows import CALLS, Question, Reply
from eval_gates.suites.bfcl import (
    CATEGORIES,
    FUNCTION_LISTS,
    BfclCase,
    CallForm,
    Calls,
    Category,
    decode,
    is_right,
    load_package,
    openai_tools,
    prompt_messages,
    read_category,
    right_calls,
)
from eval_gates.suites.generation import GeneratingTask, TextKind
from eval_gates.suites.json_lines import check_row, id_of
from eval_gates.suites.sources import QuestionSource, Row
from eval_gates.suites.suite_kind import ChatNeed, QuestionOrder, Read
from prepare.errors import EvaluationDataError
from prepare.limited_call import CallError, call_limited
from prepare.untrusted import parse_json
from recipes.generation import MaxTokens
from recipes.policy import Suite

STEM = "tools"
_FIELDS = (
    "each line needs question (a text or a list of messages), function (a list of functions with "
    "name, description and parameters) and ground_truth (a list of calls, empty where none is "
    "right, with a list of allowed values for each parameter), as BFCL's files"
)

_OBJECTS = {"type": "array", "items": {"type": "object"}}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {key: {"type": "string"} for key in ("role", "content")},
}
_KEYS = {
    "question": {"type": "array", "minItems": 1, "items": _MESSAGE},
    "function": _OBJECTS,
    "ground_truth": _OBJECTS,
}


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


class Tools(TextKind[ToolsTask]):
    """BFCL's single-turn tool calls."""

    task = ToolsTask
    sources = ("eval-data", "packages")
    folder_stem = STEM
    packaged = sum(CATEGORIES.values())
    scores_empty = True
    stops = {"completion": ["\n\n", "\nuser:"]}  # noqa: RUF012

    def count(self, suite: Suite, identity: QuestionSource) -> int | None:
        categories: list[str] = getattr(suite, "categories", [])
        if identity.kind == "packages" and categories:
            return sum(CATEGORIES[name] for name in categories)
        return super().count(suite, identity)

    def packaged_clusters(self, suite: Suite) -> int | None:
        categories: list[str] = getattr(suite, "categories", [])
        is_all = not categories and suite.cluster_by == "functions"
        return FUNCTION_LISTS if is_all else None

    def known_cluster(
        self, task: ToolsTask, identity: QuestionSource, folder: Path | None
    ) -> str | None:
        # Half of BFCL's live cases share their functions; one's own requests to one model all do.
        live = any(name.startswith("live_") for name in task.categories) or not task.categories
        return "functions" if live and identity.kind == "packages" else None

    def known_questions(self, task: ToolsTask, order: QuestionOrder) -> list[Question]:
        """Return them without BFCL's words; its checker, too, is in `evaluate` only."""
        rows = enumerate(self.read(order.source, order.folder))
        cases = [_read_case(row, number, place, task.form) for number, (place, row) in rows]
        return [
            Question(case.id, json.dumps([case.turns, case.functions], sort_keys=True))
            for case in cases
        ]

    def questions(self, task: ToolsTask, order: QuestionOrder) -> Read:
        if order.folder:
            rows = enumerate(self.read(order.source, order.folder))
            cases = [_own_case(row, n, place, task.form) for n, (place, row) in rows]
        else:
            cases = [c for name in task.categories or CATEGORIES for c in read_category(name)]
        return [_question(case, task) for case in cases], {}

    def prepare_scoring(self, task: ToolsTask) -> None:
        load_package()

    def score_text(self, task: ToolsTask, question: Question, reply: Reply) -> float:
        case = BfclCase(question.id, **question.data)
        read = (calls_in(reading, case.category, task.form) for reading in _readings(reply))
        return float(any(is_right(case, calls, task.form) for calls in read))

    def own(self, task: ToolsTask, question: Question, replies: Sequence[Reply]) -> dict[str, Any]:
        if task.form != "server":
            return {}
        return {CALLS: [[call._asdict() for call in reply.calls] for reply in replies]}

    def takes_thoughts(self, task: ToolsTask) -> bool:
        # The server's parser has separated the calls from the text.
        return task.form == "server" or super().takes_thoughts(task)

    def chat_need(self, task: ToolsTask) -> ChatNeed:
        if task.form == "server":
            return ChatNeed.TOOLS
        return ChatNeed.CHAT if task.prompt_format == "chat" else ChatNeed.NONE

    def example_chat(self, task: ToolsTask) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello"}]
        if task.form == "prompt":
            return {"messages": [{"role": "system", "content": "Functions"}, *messages]}
        parameters = {"type": "object", "properties": {"day": {"type": "string"}}}
        function = {"name": "find", "description": "Find.", "parameters": parameters}
        return {"messages": messages, "tools": [{"type": "function", "function": function}]}

    def metric(self, task: ToolsTask, laid_out: str | None) -> str:
        return "ast_acc"


def calls_in(reply: Reply, category: str, form: CallForm) -> Calls | None:
    """Return calls; None if it is not a list of calls."""
    if form == "prompt":
        return decode(reply.text, category)
    try:
        return [
            {call.name: parse_json(call.arguments or "{}", finite=False, whole_text=False)}
            for call in reply.calls
        ] or None
    except ValueError:
        return None


def _readings(reply: Reply) -> list[Reply]:
    """Return the reply as it is, and without its HTML entities, where it has any."""
    plain = [call._replace(arguments=unescape(call.arguments)) for call in reply.calls]
    without = replace(reply, text=unescape(reply.text), calls=tuple(plain))
    return [reply] if without == reply else [reply, without]


def _question(case: BfclCase, task: ToolsTask) -> Question:
    asked = prompt_messages(case) if task.form == "prompt" else case.turns
    lines = [f"{message['role']}: {message['content']}" for message in asked]
    return Question(
        case.id,
        "\n\n".join([*lines, "assistant:"]),
        tuple(asked) if task.prompt_format == "chat" else (),
        {"tools": openai_tools(case)} if task.form == "server" else {},
        group=case.category,
        expected=json.dumps(right_calls(case.ground_truth), ensure_ascii=False),
        data={key: value for key, value in case._asdict().items() if key != "id"},
    )


def _read_case(row: Row, number: int, place: str, form: CallForm) -> BfclCase:
    """Return a case of the right form, else EvaluationDataError."""
    question: Any = row.get("question")
    if isinstance(question, str) and question.strip():
        question = [{"role": "user", "content": question}]
    elif isinstance(question, list) and len(question) == 1 and isinstance(question[0], list):
        question = question[0]  # BFCL's: a list of turns
    check_row({**row, "question": question}, place, _FIELDS, **_KEYS)
    functions = row["function"]
    truth = row["ground_truth"]
    category = ("irrelevance", "simple", "parallel")[min(len(truth), 2)]
    if category == "simple" and len(functions) > 1:
        category = "multiple"
    name = id_of(row, f"request/{number}")
    case = BfclCase(name, category, question, functions, truth)
    unreadable = _unreadable_names(case) if form == "prompt" else []
    if unreadable:
        names = ", ".join(map(repr, unreadable))
        raise EvaluationDataError(
            f"no call with {names} can be read from a text: it is no name in Python"[:300],
            where=place,
            hint="take 'form: server', or names of letters, digits and '_' that are no keywords",
        )
    return case


def _unreadable_names(case: BfclCase) -> list[str]:
    """Return names that BFCL's decoder, Python's parser, does not read.

    Names of the right calls count, or all names if no call is right: a wrong call that is not read
    would be right.
    """
    calls: list[tuple[str, list[str]]] = []
    for call in case.ground_truth:
        calls += [
            (name, list(given) if isinstance(given, dict) else []) for name, given in call.items()
        ]
    if not case.ground_truth:
        calls = [_described_names(function) for function in case.functions]
    functions = [name for name, _ in calls if not _is_read(f"{name}()", name, [])]
    parameters = [
        name for _, given in calls for name in given if not _is_read(f"f({name}=0)", "f", [name])
    ]
    return list(dict.fromkeys([*functions, *parameters]))


def _described_names(function: dict[str, Any]) -> tuple[str, list[str]]:
    described = function.get("parameters")
    properties = described.get("properties") if isinstance(described, dict) else None
    name = function.get("name")
    # BFCL's own code refuses a function without a name.
    return name if isinstance(name, str) else "f", list(
        properties if isinstance(properties, dict) else []
    )


def _is_read(text: str, name: str, parameters: list[str]) -> bool:
    """Return whether a text is parsed as a call of the function with these parameters."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if not isinstance(call, ast.Call) or call.args:
        return False
    dotted = (ast.Name, ast.Attribute, ast.expr_context)
    if not all(isinstance(node, dotted) for node in ast.walk(call.func)):
        return False
    return ast.unparse(call.func) == name and [key.arg for key in call.keywords] == parameters


def _own_case(row: Row, number: int, place: str, form: CallForm) -> BfclCase:
    """Return a case that BFCL's checker takes, else EvaluationDataError."""
    case = _read_case(row, number, place, form)
    try:
        fault = call_limited(lambda: _find_fault(case, form))
    except CallError as error:
        raise EvaluationDataError(
            f"'function' cannot be described: {error}"[:300], where=place, hint=_FIELDS
        ) from error
    if fault:
        raise EvaluationDataError(
            fault,
            where=place,
            hint=f"correct types, names and required parameters; {_FIELDS}",
        )
    return case


def _find_fault(case: BfclCase, form: CallForm) -> str:
    """Return why no answer could be right, or ""."""
    prompt_messages(case), openai_tools(case)
    if not case.ground_truth:
        return ""
    calls = right_calls(case.ground_truth)
    if not is_right(case, calls, "prompt"):
        return "BFCL's checker refuses the first values of 'ground_truth'"
    if form == "prompt" and not is_right(case, decode(_write(calls), case.category), "prompt"):
        return "the first values of 'ground_truth', written as calls, are not read as themselves"
    return ""


def _write(calls: Calls) -> str:
    """Return calls as the prompt asks for them."""
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        for call in calls
        for name, given in call.items()
    )
    return f"[{', '.join(written)}]"

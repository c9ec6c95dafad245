"""Answers in JSON that must fit a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from eval_gates.reply_forms import readings
from eval_gates.rows import Question, Reply
from eval_gates.suites.generation import GeneratingTask, TextKind
from eval_gates.suites.json_lines import TEXT, check_row, id_of
from eval_gates.suites.schema_checks import find_ignored, find_indifference, find_wrapper
from eval_gates.suites.suite_kind import ChatNeed, QuestionOrder, Read
from prepare.errors import EvaluationDataError
from prepare.limited_call import CallError, call_limited
from prepare.untrusted import UntrustedJsonError, parse_json
from recipes.generation import MaxTokens

STEM = "structured"
CARRIED_FILE = Path(__file__).parents[1] / "data" / "structured.jsonl"
MAX_VALUES = 2_000  # of an answer; unique items are compared pair by pair
MAX_REPEATS = 10_000  # of a pattern: RE2 and engines for guided decoding have lower limits

PROMPT = (
    "{prompt}\n\nAnswer with one JSON value and nothing else. It must fit this JSON schema:\n"
    "{schema}"
)
COMPLETION_END = "\n\nJSON: "

_REPEATS = re.compile(r"[{,](\d+)(?=[,}])")
_FENCED = re.compile(r"```[a-zA-Z]*\n(.*?)\n?```", re.DOTALL)
_FIELDS = "each line needs prompt (a text) and schema (a JSON schema, draft 2020-12)"


class StructuredTask(GeneratingTask):
    """Requests of JSON with its schema."""

    kind: Literal["structured"] = "structured"
    max_tokens: MaxTokens = 512
    guided: bool = Field(
        False,
        description="the server decodes by the schema (response_format of its chat API), so this "
        "tests its guided decoding; otherwise the answer is generated freely",
    )

    @model_validator(mode="after")
    def _guided_by_chat(self) -> StructuredTask:
        if self.guided and self.prompt_format == "completion":
            raise ValueError("'guided' is asked by the chat API: take 'prompt_format: chat'")
        return self


class Structured(TextKind[StructuredTask]):
    """JSON by a schema: right if the answer parses and fits."""

    task = StructuredTask
    sources = ("eval-data", "builtin")
    folder_stem = STEM
    carried = CARRIED_FILE
    scores_unrelated = True
    stops = {"completion": ["\n\n"]}  # noqa: RUF012

    def questions(self, task: StructuredTask, order: QuestionOrder) -> Read:
        rows = self.read(order.source, order.folder)
        return [_question(row, n, place, task) for n, (place, row) in enumerate(rows)], {}

    def prepare_scoring(self, task: StructuredTask) -> None:
        find_fault("{}", {})

    def score_text(self, task: StructuredTask, question: Question, reply: Reply) -> float:
        return float(not find_fault(reply.text, question.data["schema"]))

    def chat_need(self, task: StructuredTask) -> ChatNeed:
        return ChatNeed.CHAT if task.guided else ChatNeed.NONE

    def metric(self, task: StructuredTask, laid_out: str | None) -> str:
        return "valid_json"


def find_fault(answer: str, schema: dict[str, Any]) -> str:
    """Return why the answer is not JSON that fits the schema, or "".

    It may be in one fenced block, and a gateway may have escaped its HTML characters.
    """
    text = answer.strip()
    fenced = _FENCED.fullmatch(text)
    faults = [_fault_in(reading, schema) for reading in readings(fenced[1] if fenced else text)]
    return faults[0] if all(faults) else ""


def _fault_in(text: str, schema: dict[str, Any]) -> str:
    from jsonschema.exceptions import best_match

    try:
        value = parse_json(text, whole_text=False, values=MAX_VALUES)
    except UntrustedJsonError as error:
        return f"not JSON: {error}"[:200]
    validator = _validator(schema)
    try:
        fault = best_match(validator.iter_errors(value))
    except Exception as error:  # the library's, such as OverflowError for 10**400
        return f"the schema cannot be applied: {type(error).__name__}"
    return f"{fault.json_path}: {fault.message}"[:200] if fault else ""


def _validator(schema: dict[str, Any]) -> Any:
    """Return a validator that fetches no other schema."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def _question(row: dict[str, Any], number: int, place: str, task: StructuredTask) -> Question:
    check_row(row, place, _FIELDS, prompt=TEXT, schema={"type": "object"})
    prompt = row["prompt"]
    schema = row["schema"]
    _check_schema(schema, place)
    shown = PROMPT.format(prompt=prompt, schema=json.dumps(schema, ensure_ascii=False))
    name = id_of(row, f"request/{number}")
    asked = shown + (COMPLETION_END if task.prompt_format == "completion" else "")
    if not task.guided:
        return Question(name, asked, data={"schema": schema})
    messages = ({"role": "user", "content": asked},)
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return Question(name, asked, messages, {"response_format": wanted}, data={"schema": schema})


def _check_schema(schema: dict[str, Any], place: str) -> None:
    try:
        problem = call_limited(lambda: _find_problem(schema))
    except CallError as error:
        problem = f"cannot be checked: {error}"
    if problem:
        raise EvaluationDataError(
            f"'schema' {problem}"[:300], where=place, hint="fix or remove the line"
        )


def _find_problem(schema: dict[str, Any]) -> str:
    """Return why a schema is unusable, or ""."""
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if problem := find_wrapper(schema):
        return problem
    inner = (name for part in schema.values() for name in _values_of(part, "$id"))
    if any(_values_of(schema, "$dynamicRef")) or any(isinstance(name, str) for name in inner):
        return "uses $dynamicRef or an inner $id, which are not resolved here"
    named = (
        mapping for mapping in _values_of(schema, "patternProperties") if isinstance(mapping, dict)
    )
    for pattern in (
        *_values_of(schema, "pattern"),
        *(word for mapping in named for word in mapping),
    ):
        repeats = _REPEATS.findall(pattern) if isinstance(pattern, str) else []
        if any(int(number) > MAX_REPEATS for number in repeats):
            return f"has a pattern with more than {MAX_REPEATS:,} repetitions"
    try:
        Draft202012Validator.check_schema(schema)
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for reference in _values_of(schema, "$ref"):
            if isinstance(reference, str):  # else a property of this name
                Draft202012Validator.check_schema(resolver.lookup(reference).contents)
        return find_ignored(schema) or find_indifference(schema, _validator(schema))
    except SchemaError as error:
        return f"is not a JSON schema: {error.message}"
    except Unresolvable as error:
        return f"refers to what it does not hold: {error.ref}"
    except RecursionError:
        return "refers to itself without an end, or is nested too deeply"
    except Exception as error:  # the library's, such as ValueError for a reference into a list
        return f"cannot be checked: {type(error).__name__} {error}"


def _values_of(schema: Any, key: str) -> Iterator[Any]:
    if isinstance(schema, dict):
        if key in schema:
            yield schema[key]
        for value in schema.values():
            yield from _values_of(value, key)
    elif isinstance(schema, list):
        for value in schema:
            yield from _values_of(value, key)

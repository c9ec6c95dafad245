"""JSON by a schema: questions of a folder or carried, faults of answers, rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from eval_gates.rows import Asked, Question, Reply
from eval_gates.suites import structured
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.structured import Structured, StructuredTask, find_fault
from eval_gates.suites.suite_kind import QuestionOrder

CHAT = StructuredTask(prompt_format="chat")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer", "minimum": 1000}},
    "required": ["name"],
    "additionalProperties": False,
}


def read(folder: Path | None, task: StructuredTask = CHAT) -> list[dict[str, Any]]:
    source = QuestionSource(kind="folder" if folder else "builtin", digest="d")
    order = QuestionOrder(source, folder, Path(), Listener())
    return [question.to_row() for question in Structured().questions(task, order)[0]]


def row(
    answer: str, task: StructuredTask = CHAT, schema: dict[str, Any] = PERSON, **facts: bool
) -> dict[str, Any]:
    question = Question("1", "Ada?", data={"schema": schema})
    other = Question("2", "Some?", data={"schema": {"type": "array"}})
    asked = Asked(question, [Reply(answer, 7, **facts)], other)
    return Structured().score_batch(task, [asked], Listener())[0]


def doubled(keyword: str, last: bool) -> dict[str, Any]:
    """Return a schema whose check takes 2 ** 30 steps."""
    names = [{"$ref": f"#/$defs/{n}"} for n in range(31)]
    defs: dict[str, Any] = {str(n): {keyword: [names[n + 1]] * 2} for n in range(30)}
    return {"$ref": "#/$defs/0", "$defs": {**defs, "30": last}}


def test_the_carried_requests_are_many_and_none_is_solved_by_a_trivial_answer() -> None:
    rows = read(None)
    assert len(rows) == len({each["prompt"] for each in rows}) == 60
    for trivial in ("", "{}", "[]", "null", "0", '""', '"JSON"', "[{}]"):
        assert all(find_fault(trivial, each["schema"]) for each in rows)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        '{"name": "Ada"',
        "{'name': 'Ada'}",
        'Sure! {"name": "Ada"}',
        '{"name": "Ada"} That is all.',
        '{"name": "Ada", "name": "Bo"}',
        '{"name": NaN}',
        '{"name": "Ada", "age": 36}',
        '{"name": "Ada", "born": 3}',
        '{"name": "Ada", "born": "1815"}',
        "[" * 5_000,
        "[" * 60 + "]" * 60,
        "[" + "1," * 20_000 + "1]",
        '{"name": ' + "9" * 5_000 + "}",
        "\ud800",
    ],
)
def test_wrong_answers(answer: str) -> None:
    assert find_fault(answer, PERSON)


def test_references_within_the_schema() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert find_fault("[[], [[]]]", tree) == ""
    assert find_fault("[[], [1]]", tree)


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}
    structured._check_schema(schema, "here")
    assert find_fault('{"$ref": "a"}', schema) == ""
    assert find_fault('{"$ref": 1}', schema)


def test_a_number_beyond_floats_is_no_crash() -> None:
    assert find_fault("1" + "0" * 400, {"multipleOf": 0.1})


@pytest.mark.parametrize(
    ("answer", "schema"),
    [
        ("a" * 60 + "!", {"pattern": "^(a|a)*$"}),
        (1, doubled("anyOf", False)),
        (1, doubled("allOf", True)),
        ([[n] if n % 2 else {"a": n} for n in range(4_900)], {"uniqueItems": True}),
    ],
)
def test_an_answer_that_takes_years_to_grade_scores_0(
    answer: Any, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.core.limited_call.CPU_SECONDS", 1.0)
    found = row(json.dumps(answer), schema=schema)
    assert found.score == 0

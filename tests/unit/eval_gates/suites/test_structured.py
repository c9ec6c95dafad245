"""JSON by a schema: questions of a folder or carried, faults of answers, rows."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from listener import Listener

from eval_gates.rows import AnsweredQuestion, Question, Reply
from eval_gates.suites.structured import (
    CARRIED_FILE,
    Structured,
    StructuredTask,
    _find_problem,
    find_fault,
)

CHAT = StructuredTask(prompt_format="chat")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer", "minimum": 1000}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_package_that_is_missing_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "referencing", None)
    with pytest.raises(ImportError, match="referencing"):
        find_fault("{}", {})


def row(
    answer: str, task: StructuredTask = CHAT, schema: dict[str, Any] = PERSON, **facts: bool
) -> dict[str, Any]:
    question = Question("1", "Ada?", data={"schema": schema})
    other = Question("2", "Some?", data={"schema": {"type": "array"}})
    asked = AnsweredQuestion(question, [Reply(answer, 7, **facts)], other)
    return Structured().score_batch(task, [asked], Listener())[0]


def doubled(keyword: str, last: bool) -> dict[str, Any]:
    """Return a schema whose check takes 2 ** 30 steps."""
    names = [{"$ref": f"#/$defs/{n}"} for n in range(31)]
    defs: dict[str, Any] = {str(n): {keyword: [names[n + 1]] * 2} for n in range(30)}
    return {"$ref": "#/$defs/0", "$defs": {**defs, "30": last}}


def test_references_within_the_schema() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert find_fault("[[], [[]]]", tree) == ""
    assert find_fault("[[], [1]]", tree)


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}
    assert find_fault('{"$ref": "a"}', schema) == ""
    assert find_fault('{"$ref": 1}', schema)


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {"type": "object"},
        {"type": ["string", "number", "boolean", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [PERSON, {"type": "object", "required": ["born"]}]},
        {"enum": ["a", 1, None]},
        {"const": None},
        {"$ref": "#/definitions/a", "definitions": {"a": PERSON}},
        {"type": "object", "properties": {"requried": {"type": "null"}, "dependencies": {}}},
        {"type": "object", "properties": {"a": {"default": {"requried": 1}}}},
        {"type": "object", "patternProperties": {"^a": {}}, "required": ["a"]},
        {**PERSON, "x-required": ["a"], "$comment": "c", "examples": [{}], "deprecated": True},
        {**PERSON, "example": {}, "readOnly": True, "enumNames": ["A"], "propertyOrdering": []},
        {**PERSON, "nullable": False, "note": "n", "label": "l", "order": 1, "schema": {}},
        {"type": "string", "format": "date", "contentMediaType": "text/plain"},
    ],
)
def test_a_schema_that_judges_answers_is_taken(schema: dict[str, Any]) -> None:
    assert _find_problem(schema) == ""


def test_carried_schemas_judge_answers() -> None:
    schemas = [json.loads(line)["schema"] for line in CARRIED_FILE.read_text().splitlines()]
    assert len(schemas) == 60
    assert [problem for schema in schemas if (problem := _find_problem(schema))] == []


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
    monkeypatch.setattr("prepare.limited_call.CPU_SECONDS", 1.0)
    found = row(json.dumps(answer), schema=schema)
    assert found.score == 0

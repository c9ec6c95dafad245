"""Every suite by one contract: rows of a folder -> prompts -> replies -> scores.

Suites whose scorers are installed in the `evaluate` environment alone (lm-eval, BFCL, rouge-score)
are scored in `tests/e2e/test_suites_asked.py`; here what they refuse.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from listener import Listener

from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply, ToolCall
from eval_gates.suites.generation import GeneratingTask, TextKind
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, SuiteKind, kind_named
from prepare.errors import EvaluationDataError, UsageError
from prepare.limited_call import call_limited
from prepare.plugins import Plugin

QUIZ = {
    "subject": "high_school_physics",
    "question": " What falls? ",
    "choices": ["an apple", "the sky", "night", "nothing"],
    "answer": 0,
}
OTHER = {**QUIZ, "question": "What flies?", "choices": ["a", "b", "c", "d"], "answer": "C"}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FUNCTION = {
    "task_id": 9,
    "prompt": "Write a function that doubles.",
    "code": "def twice(n):\n    return 2 * n\n",
    "test_list": ["assert twice(2) == 4"],
    "test_imports": [],
    "test": "assert twice(3) == 6\n",
}
SUM = {"question": "Two and two?", "answer": "2 + 2\n#### 4"}
INSTRUCTED = {"prompt": "Write.", "instruction_id_list": ["a:b"], "kwargs": [{}]}
PRO = {"question": "Which?", "options": ["8", "9", "11"], "answer": "C", "category": "law"}
DOCUMENT = {"document": "A cat sat.", "summary": "Cat sits."}


class Case(NamedTuple):
    """Rows of a file, the first question's prompt, and scores of replies to it."""

    kind: str
    file: str
    rows: list[dict[str, Any]]
    prompt: str  # how it ends
    scores: list[tuple[Reply, float]]
    settings: dict[str, Any] = {}  # noqa: RUF012 - a default of a tuple


def values(*numbers: float) -> Reply:
    return Reply(values=tuple((number, False) for number in numbers))


def texts(*pairs: tuple[str, float]) -> list[tuple[Reply, float]]:
    return [(Reply(text, 5), score) for text, score in pairs]


THINKS = {"thinking": {"start": "<think>", "end": "</think>"}}
CASES = [
    Case(
        "mmlu",
        "mmlu_test.jsonl",
        [QUIZ, OTHER],
        "What falls?\nA. an apple\nB. the sky\nC. night\nD. nothing\nAnswer:",
        [(values(-1, -2, -3, -4), 1.0), (values(-2, -1, -3, -4), 0.0)],
        {"num_fewshot": 0},
    ),
    Case(
        "mmlu",
        "mmlu_test.jsonl",
        [QUIZ, OTHER],
        "about high school physics.\n\nQuestion: What falls?\nAnswer:",
        [(values(-8, -7, -9, -9), 1.0)],  # per character, 'an apple' has the most
        {"num_fewshot": 0, "prompt_format": "cloze"},
    ),
    Case(
        "structured",
        "structured_test.jsonl",
        [{"prompt": "Ada?", "schema": PERSON}, {"prompt": "Some?", "schema": {"type": "array"}}],
        json.dumps(PERSON),
        [
            *texts(('{"name": "Ada"}', 1), ('```json\n{"name": "Ada"}\n```', 1)),
            *texts(("[]", 0), ("", 0), ('Sure! {"name": "A"}', 0), ('{"name": NaN}', 0)),
            *texts(("[" * 5_000, 0), ('{"name": 1, "name": "B"}', 0), ("\ud800", 0)),
            (Reply('{"name": "Ada"}', 5, is_truncated=True), 1.0),  # it is whole
        ],
        {"prompt_format": "chat"},
    ),
    Case(
        "structured",
        "structured_test.jsonl",
        [{"prompt": "Ada?", "schema": PERSON}, {"prompt": "B", "schema": {"type": "object"}}],
        json.dumps(PERSON),
        [(Reply('{"name": "Ada"}', 5), 1.0), (Reply('{"name": "Ada"}', 5, is_truncated=True), 0.0)],
        {"prompt_format": "chat", **THINKS},
    ),
    Case(
        "mbpp",
        "mbpp_test.jsonl",
        [FUNCTION, {**FUNCTION, "task_id": 10}],
        '    assert twice(2) == 4\n    """\n\n```\n',
        [
            *texts(("```python\ndef twice(n):\n    return n + n\n```", 1), ("return 2 * n", 1)),
            *texts(("def twice(n):\n    return n\n", 0), ("import os\nos._exit(0)", 0), ("", 0)),
            (Reply("def twice(n):\n    return 2 * n", 5, is_truncated=True), 1.0),
        ],
        {"prompt_format": "chat"},
    ),
    Case(
        "needles",
        "",
        [],
        "Answer: The special number for",
        [],
        {"prompt_format": "completion", "lengths": [512], "cases": 3},
    ),
]
REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    *(
        ("mmlu", "mmlu_test.jsonl", QUIZ, change, message)
        for change, message in [
            ({"subject": ""}, "'subject'"),
            ({"question": None}, "'question'"),
            ({"choices": ["a", "b", "c"]}, "'choices'"),
            ({"choices": "abcd"}, "'choices'"),
            ({"answer": 4}, "'answer': 4"),
            ({"answer": True}, "'answer': True"),
            ({"answer": "E"}, "'answer': 'E'"),
        ]
    ),
    *(
        ("rouge", "summarization_test.jsonl", DOCUMENT, change, message)
        for change, message in [
            ({"document": " "}, "'document'"),
            ({"summary": ""}, "'summary'"),
            ({"summary": "!?"}, "no letter"),
            ({"references": []}, "'references'"),
            ({"references": ["good", ""]}, "'references'"),
        ]
    ),
    *(
        (
            "structured",
            "structured_test.jsonl",
            {"prompt": "Ada?", "schema": PERSON},
            change,
            message,
        )
        for change, message in [
            ({"prompt": " "}, "'prompt'"),
            ({"schema": "object"}, "'schema': 'object' is not of type"),
            ({"schema": {"type": "thing"}}, "not a JSON schema"),
            ({"schema": {"pattern": "("}}, "not a JSON schema"),
            ({"schema": {"items": {"$ref": "https://host.example/x.json"}}}, "does not hold"),
            ({"schema": {"pattern": "^(a{2,99999})$"}}, "more than 10,000 repetitions"),
            ({"schema": {"$ref": "#"}}, "refers to itself"),
            ({"schema": {"$dynamicRef": "#absent"}}, "dynamicRef"),
            ({"schema": {"items": {"$id": "http://x/"}}}, "inner .id"),
            ({"schema": {}}, "accepts any JSON .*give its 'type'"),
            ({"schema": {"title": "Person"}}, "accepts any JSON"),
            ({"schema": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}, "any JSON"),
            ({"schema": {"minLength": 3}}, "accepts any JSON"),
            ({"schema": {"not": {"type": "object"}}}, "accepts any JSON"),
            ({"schema": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}, "accepts any JSON"),
            ({"schema": {"name": "a", "strict": True, "schema": PERSON}}, "its inner 'schema'"),
            ({"schema": {"type": "json_schema", "json_schema": {"schema": PERSON}}}, "its inner"),
            (
                {"schema": {**PERSON, "additionalProperties": False, "required": ["x"]}},
                "requires 'x', which",
            ),
            ({"schema": {**PERSON, "dependencies": {"a": ["b"]}}}, "take 'dependentRequired'"),
            ({"schema": {"type": "array", "additionalItems": False}}, "take 'prefixItems'"),
            ({"schema": {"type": "array", "items": [PERSON]}}, "not a JSON schema"),
            ({"schema": {"type": "string", "nullable": True}}, "'type' with 'null'"),
            ({"schema": {"type": "object", "requried": ["a"]}}, "take 'required' if"),
            ({"schema": {"type": "object", "Properties": {"a": {}}}}, "take 'properties' if"),
            ({"schema": {"type": "object", "property": {"a": {}}}}, "take 'properties' if"),
            ({"schema": {"type": "array", "items": {"anyof": [PERSON]}}}, "take 'anyOf' if"),
            ({"schema": {**PERSON, "$defs": {"a": {"min_length": 1}}}}, "take 'minLength' if"),
            ({"schema": {"allOf": [{"type": "string", "enums": ["a"]}]}}, "take 'enum' if"),
        ]
    ),
    *(
        ("mbpp", "mbpp_test.jsonl", FUNCTION, change, message)
        for change, message in [
            ({"task_id": True}, "'task_id'"),
            ({"prompt": "Write\0"}, "'prompt' is not Python"),
            ({"code": "def twice("}, "'code' is not Python"),
            ({"test_list": []}, "'test_list'"),
            ({"test_list": ["assert other([1]) == 0"]}, "'test_list'.* uses none"),
            ({"test_imports": [1]}, "'test_imports'"),
            ({"test": "(" * 5000}, "'test' is not Python"),
            ({"test": "assert 1 + 1 == 2"}, "'test' must use 'twice'"),
            ({"test": "assert twice(helper(1)) == 0"}, "such as helper"),
            ({"test": "def twice(n): return 0\nassert twice(1) == 0"}, "but not this one"),
            ({"test": "from numpy import *\nassert twice(1) == 2"}, "'test' must use 'twice'"),
        ]
    ),
]
PRESETS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("gsm8k", SUM, {"question": " "}, "'question'"),
    ("gsm8k", SUM, {"answer": "5"}, "'answer'"),
    ("gsm8k", SUM, {"answer": "It is\n#### 5 apples"}, "'answer'"),
    # Without worked examples lm-eval compares what follows '#### ' as it is.
    *(
        ("gsm8k", SUM, {"answer": f"5\n{end}"}, "'answer'")
        for end in ("####5", "####  5", "#### 5 ")
    ),
    ("ifeval", INSTRUCTED, {"prompt": ""}, "'prompt'"),
    ("ifeval", INSTRUCTED, {"instruction_id_list": "a:b"}, "'instruction_id_list'"),
    ("ifeval", INSTRUCTED, {"kwargs": []}, "instruction_id_list and kwargs differ"),
    ("mmlu_pro", PRO, {"options": ["8"]}, "'options'"),
    ("mmlu_pro", PRO, {"category": "astrology"}, "'category'"),
    ("mmlu_pro", PRO, {"answer": "D"}, "'answer'"),
]


def lay_out(
    kind: str, file: str, rows: list[dict[str, Any]], folder: Path, settings: dict[str, Any]
) -> tuple[Any, Any, list[Question]]:
    """Return the kind, its task and the questions of these rows."""
    data, output = folder / "data", folder / "output"
    data.mkdir(exist_ok=True)
    output.mkdir(exist_ok=True)
    if file:
        (data / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = kind_named(kind)
    task = found.task.model_validate({"kind": kind, **settings})
    source = QuestionSource(kind="folder" if file else "builtin", digest="d")
    order = QuestionOrder(source, data if file else None, output, Listener())
    questions = found.questions(task, order)[0]
    found.open(task, questions, output)
    return found, task, [found.render(task, each, None) for each in questions]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_rows_become_prompts_and_replies_become_scores(case: Case, tmp_path: Path) -> None:
    kind, task, questions = lay_out(case.kind, case.file, case.rows, tmp_path, case.settings)
    first, other, *_ = questions
    assert case.prompt in first.prompt[-len(case.prompt) - 60 :]
    assert Question.from_row(first.to_row()) == first
    asked = [AnsweredQuestion(first, [reply], other) for reply, _ in case.scores]
    rows = kind.score_batch(task, asked, Listener())
    assert [row.score for row in rows] == [score for _, score in case.scores]
    for each, row in zip(asked, rows, strict=True):
        whole = Answer.of(each, row, thinks=False)
        assert Answer.from_row(json.loads(json.dumps(whole.to_row()))) == whole
        assert (whole.id, whole.group) == (first.id, first.group)
        assert (whole.unrelated is not None) == kind.scores_unrelated


@pytest.mark.parametrize(("kind", "file", "good", "change", "message"), REFUSED)
def test_a_malformed_line_is_named(
    kind: str,
    file: str,
    good: dict[str, Any],
    change: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prepare.limited_call.CPU_SECONDS", 1.0)
    settings = {"num_fewshot": 0} if kind == "mmlu" else {"prompt_format": "chat"}
    with pytest.raises(EvaluationDataError, match=message) as caught:
        lay_out(kind, file, [good, {**good, **change}], tmp_path, settings)
    assert str(caught.value.where).endswith(f"{file}, line 2")


@pytest.mark.parametrize(("kind", "good", "change", "message"), PRESETS)
def test_a_presets_malformed_line_is_named(
    kind: str, good: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    suite: Any = kind_named(kind)
    assert suite.preset.document({**good, "more": 1}, "here").items() >= good.items()
    with pytest.raises(EvaluationDataError, match=message) as caught:
        suite.preset.document({**good, **change}, "a file, line 2")
    assert caught.value.where == "a file, line 2"


def test_a_preset_whose_checker_hangs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(call: Any, *, seconds: float) -> Any:
        return call_limited(call, seconds=min(seconds, 1))

    suite: Any = kind_named("ifeval")
    hanging = SimpleNamespace(
        score_text=lambda document, _: re.match("(a|a)*b", document["prompt"])
    )
    monkeypatch.setattr(suite, "_task", lambda *_: hanging)
    monkeypatch.setattr("eval_gates.suites.presets.call_limited", limit)
    with pytest.raises(EvaluationDataError, match="cannot be checked: it takes more than 1 s"):
        suite._try_scores(None, [{"prompt": "a" * 60}], ["a file, line 1"])


@pytest.mark.parametrize(("base", "lacking"), [(SuiteKind, "score"), (TextKind, "score_text")])
def test_a_suite_without_its_score_is_refused_when_it_is_loaded(
    base: Any, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"task": GeneratingTask, "questions": None, "metric": None}
    found = type("Unscored", (base,), written)
    monkeypatch.setattr(Plugin, "load", lambda _: found)
    with pytest.raises(UsageError, match=rf"does not implement {lacking}\n"):
        kind_named("rouge")


def test_calls_are_read_as_the_servers_parser_gives_them() -> None:
    from eval_gates.suites.tools import calls_in

    def read(*calls: ToolCall) -> Any:
        return calls_in(Reply("text", calls=calls), "multiple", "server")

    assert read(ToolCall("f", '{"a": 1}'), ToolCall("g", "")) == [{"f": {"a": 1}}, {"g": {}}]
    assert read() is None
    assert read(ToolCall("f", '{"a": 1')) is None
    assert read(ToolCall("f", "[" * 100_000)) is None


def test_a_schema_whose_property_has_the_name_of_a_keyword_is_taken(tmp_path: Path) -> None:
    properties = {"$ref": {"type": "string"}, "$id": {"type": "string"}}
    schema = {"type": "object", "properties": properties}
    rows = [{"prompt": "Ada?", "schema": schema}]
    _, _, (question,) = lay_out(
        "structured", "structured_test.jsonl", rows, tmp_path, {"prompt_format": "chat"}
    )
    assert question.data["schema"] == schema


@pytest.mark.parametrize("references", [None, ["It sat.", "Cat sat."]])
def test_references_win_over_the_one_summary(references: Any, tmp_path: Path) -> None:
    row = DOCUMENT if references is None else {**DOCUMENT, "references": references}
    file = "summarization_test.jsonl"
    _, _, (question,) = lay_out("rouge", file, [row], tmp_path, {"prompt_format": "chat"})
    assert question.data["references"] == (references or ["Cat sits."])


def test_the_carried_questions_are_many_and_distinct(tmp_path: Path) -> None:
    for kind, least in (("rouge", 24), ("structured", 60), ("mmlu", 90)):
        settings = {"num_fewshot": 0} if kind == "mmlu" else {"prompt_format": "chat"}
        _, _, questions = lay_out(kind, "", [], tmp_path, settings)
        assert len(questions) == len({each.prompt for each in questions}) >= least

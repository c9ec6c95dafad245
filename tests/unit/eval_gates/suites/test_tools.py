"""Tool calls without BFCL's package: keys, numbers of cases, arithmetic. The rest is end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.rows import Reply, ToolCall
from eval_gates.suites.bfcl import _or_none, evaluate_arithmetic, right_calls
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from eval_gates.suites.tools import Tools, ToolsTask, _readings, _write, calls_in
from prepare.errors import EvaluationDataError
from prepare.events import NullProgress

MARGINS: dict[Any, Any] = {"fp8": 0.03}
NUMBERS = st.integers(-1_000, 1_000)


def test_the_number_of_cases_is_known_before_they_are_read() -> None:
    packages = QuestionSource(kind="packages", environment="e")
    every, few = (
        Tools.policy(margins=MARGINS, categories=names)
        for names in ([], ["simple_java", "multiple"])
    )
    assert Tools().count(every, packages) == 3_641
    assert Tools().count(few, packages) == 300


def test_live_cases_share_their_functions() -> None:
    packages = QuestionSource(kind="packages", environment="e")
    assert Tools().known_cluster(ToolsTask(), packages, None) == "functions"
    live = ToolsTask(categories=["live_simple"])
    assert Tools().known_cluster(live, packages, None) == "functions"
    assert Tools().known_cluster(ToolsTask(categories=["multiple"]), packages, None) is None


def test_right_calls_have_the_first_values_and_leave_out_what_may_be() -> None:
    truth = [
        {"f": {"a": [1, 2], "b": ["", 3], "c": [""], "d": [{"e": [4], "g": 5}], "h": [[6, 7]]}}
    ]
    assert right_calls(truth) == [{"f": {"a": 1, "b": 3, "d": {"e": 4, "g": 5}, "h": [6, 7]}}]


def test_escaped_values_of_calls_are_read_both_ways() -> None:
    """A gateway escapes the characters; a program may need the entities."""
    reply = Reply(calls=(ToolCall("f", '{"a": "x &lt; y"}'),))
    read = [calls_in(each, "simple", "server") for each in _readings(reply)]
    assert read == [[{"f": {"a": "x &lt; y"}}], [{"f": {"a": "x < y"}}]]
    plain = Reply(calls=(ToolCall("f", "{}"),))
    assert _readings(plain) == [plain]


def test_a_package_that_is_missing_is_no_wrong_answer() -> None:
    def missing() -> None:
        raise ImportError("tree_sitter")

    with pytest.raises(ImportError, match="tree_sitter"):
        _or_none(missing)
    assert _or_none(lambda: {}["a text of the model"]) is None


def request(name: str, *parameters: str, is_right: bool = True, other: str = "") -> dict[str, Any]:
    properties = {parameter: {"type": "string", "description": "d"} for parameter in parameters}
    described = {"type": "dict", "required": [], "properties": properties}
    functions = [
        {"name": each, "description": "d", "parameters": described}
        for each in (name, other)
        if each
    ]
    truth = [{name: {parameter: ["Paris"] for parameter in parameters}}] if is_right else []
    return {"question": "Find it.", "function": functions, "ground_truth": truth}


def known(folder: Path, row: dict[str, Any], **task: Any) -> int:
    """Return the number of questions that `plan` knows."""
    file = folder / "tools_test.jsonl"
    file.write_text(json.dumps(request("find", "city")) + "\n" + json.dumps(row) + "\n")
    order = QuestionOrder(QuestionSource(kind="folder"), file, folder, NullProgress())
    return len(Tools().known_questions(ToolsTask(**task), order))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (request("get-weather", "city"), "'get-weather'"),
        (request("get weather", "city"), "'get weather'"),
        (request("2d", "city"), "'2d'"),
        (request("", "city"), "''"),
        (request("class", "city"), "'class'"),
        (request("maps.import", "city"), "'maps.import'"),
        (request("\ufb01nd", "city"), "'\ufb01nd'"),  # Python reads the ligature as two letters
        (request("f(x=1)", "city"), "'f(x=1)'"),
        (request("f", "from"), "'from'"),
        (request("f", "to", "user-id"), "'user-id'"),
        (request("f", "a b"), "'a b'"),
        (request("f", "a=0, b"), "'a=0, b'"),
        (request("get-weather", "city", is_right=False), "'get-weather'"),
        (request("f", "city", is_right=False, other="get-weather"), "'get-weather'"),
        (request("f", "class", is_right=False), "'class'"),
    ],
)
def test_names_that_no_answer_can_call_are_refused_by_plan(
    tmp_path: Path, row: dict[str, Any], name: str
) -> None:
    """A right call would score 0, and a wrong one 1 where no call is right."""
    with pytest.raises(EvaluationDataError, match="can be read from a text") as caught:
        known(tmp_path, row)
    assert name in caught.value.message
    assert str(caught.value.where).endswith("tools_test.jsonl, line 2")
    assert "form: server" in str(caught.value.hint)
    assert known(tmp_path, row, form="server", prompt_format="chat") == 2


@pytest.mark.parametrize(
    "row",
    [
        request("maps.find", "city", "to_"),
        request("f", is_right=False),
        request("f", "match", "type", "print"),
        request("f", "city", other="get-weather"),
        request("suche", "stra\u00dfe"),
    ],
)
def test_names_that_an_answer_can_call_are_taken(tmp_path: Path, row: dict[str, Any]) -> None:
    assert known(tmp_path, row) == 2


def test_calls_are_written_as_the_prompt_asks() -> None:
    calls = [{"f": {"a": 1, "b": ["it's"]}}, {"maps.g": {"c": None, "d": {"e": -1.5}}}]
    assert _write(calls) == """[f(a=1, b=["it's"]), maps.g(c=None, d={'e': -1.5})]"""


@given(left=NUMBERS, right=NUMBERS, sign=st.sampled_from("+-*"))
def test_arithmetic(left: int, right: int, sign: str) -> None:
    expression = f"{left} {sign} {right}"
    assert evaluate_arithmetic(expression) == eval(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "print(1) + 1",
        "a + 1",
        "().__class__ + 1",
        "'a' * 1000000000",
        "9 ** 9 ** 9",
        "(64 ** 64) ** 64",
        "1 << 1000000000",
        "[1] + [2]",
        "f'{print(1)}' + 'a'",
        "'%d' % 1",
        "(lambda: 1)() + 1",
    ],
)
def test_whatever_is_not_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="arithmetic"):
        evaluate_arithmetic(expression)

"""Tool calls without BFCL's package: keys, numbers of cases, arithmetic. The rest is end to end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.rows import Reply, ToolCall
from eval_gates.suites.bfcl import _or_none, evaluate_arithmetic, right_calls
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.tools import Tools, ToolsTask, _readings, calls_in

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

"""What is read of a turn: calls in the forms of servers and models, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eval_gates
from eval_gates.decisions.turn_decision import (
    READER_ERRORS,
    TurnDecision,
    declines,
    keeps,
    kept_kinds,
    read_decision,
)
from eval_gates.decisions.written_call import UNREAD_FORM
from eval_gates.rows import ToolCall

LABELLED = Path(eval_gates.__file__).parent / "data" / "refusals.jsonl"
TOOLS = ("get_weather", "find")
ROME = '{"days": 2, "place": "Rome"}'


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {"place": "Rome", "days": 2}}</tool_call>',
        'I look.<tool_call>{"arguments": {"place": "Rome", "days": 2}, "name": "get_weather"}',
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"place": "Rome", "days": 2.0}}]',
        '[TOOL_CALLS]get_weather{"place": "Rome", "days": 2}',
        '[TOOL_CALLS]get_weather[ARGS]{"place": "Rome", "days": 2}',
        '<|python_tag|>{"name": "get_weather", "parameters": {"place": "Rome", "days": 2}}',
        '{"name": "get_weather", "parameters": {"place": "Rome", "days": 2}}',
        '```json\n{"name": "get_weather", "arguments": {"place": "Rome", "days": 2}}\n```',
        '<function=get_weather>{"place": "Rome", "days": 2}</function>',
        "<tool_call>\n<function=get_weather>\n<parameter=place>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>",
        "<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        '<invoke name="get_weather"><parameter name="place">Rome</parameter>'
        '<parameter name="days">2</parameter></invoke>',
        "<start_function_call>call:get_weather{place:<escape>Rome<escape>,days:2}",
        'to=functions.get_weather <|constrain|>json<|message|>{"place": "Rome", "days": 2}',
        "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"place": "Rome", "days": 2}<|tool_call_end|>',
        "<\uff5ctool\u2581call\u2581begin\uff5c>get_weather<\uff5ctool\u2581sep\uff5c>"
        '{"place": "Rome", "days": 2}<\uff5ctool\u2581call\u2581end\uff5c>',
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function"
        '<\uff5ctool\u2581sep\uff5c>get_weather\n```json\n{"place": "Rome", "days": 2}\n```',
        'Action: get_weather\nAction Input: {"place": "Rome", "days": 2}',
        '[get_weather(place="Rome", days=2)]',
        'get_weather(days=2, place="Rome")',
    ],
)
def test_one_call_in_many_forms_is_one_decision(text: str) -> None:
    assert read_decision(text, (), TOOLS) == TurnDecision("get_weather", ROME)


def test_the_servers_call_counts_first() -> None:
    calls = (ToolCall("find", '{"b": 1.0, "a": [2]}'), ToolCall("get_weather", "{}"))
    found = read_decision("I cannot help with that.", calls, TOOLS)
    assert found == TurnDecision("find", '{"a": [2], "b": 1}')


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ('{"a": 1, "b": "x"}', '{ "b":"x","a":1.0 }', True),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ("", "{}", True),
        ('{"a": "Ro', '{"a":  "Ro', True),  # both are cut off
        ('{"a": "Ro', '{"a": "Rome"}', False),
    ],
)
def test_arguments_are_compared_as_json_values(one: str, other: str, is_equal: bool) -> None:
    first, second = (read_decision("", (ToolCall("find", each),), ()) for each in (one, other))
    assert (first == second) is is_equal


@pytest.mark.parametrize(
    "text",
    [
        "The weather is fine.",
        "Call find(x) in Python to search.",
        'print("hello")',
        '{"temperature": 21}',
        "",
        "<b>get_weather</b> is a tool",
    ],
)
def test_texts_that_call_nothing(text: str) -> None:
    assert not read_decision(text, (), TOOLS).calls


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "argum',
        '<tool_call>{"name": "get_weather", "arguments": {"place": "Ro',
        "get_weather(place='Ro",
        "<start_function_call>call:get_weather{place:<escape>Ro",
        "<tool_call>" + "[" * 5_000,
        '<tool_call>{"name": "get_weather", "arguments": ' + '{"a":' * 5_000,
        "get_weather(" + "(" * 5_000,
    ],
)
def test_a_call_that_is_cut_off_is_no_error(text: str) -> None:
    found = read_decision(text, (), TOOLS)
    assert found.tool == "get_weather" or found.tool.startswith(UNREAD_FORM)
    assert TurnDecision.from_row(found.to_row()) == found


def test_the_readers_errors_on_labelled_texts_are_those_that_are_told() -> None:
    rows = [json.loads(line) for line in LABELLED.read_text().splitlines()]
    wrong = [row for row in rows if declines(row["text"]) != row["declines"]]
    assert f"errs on {len(wrong)} of {len(rows)} texts" in READER_ERRORS
    assert all(row["held_out"] for row in wrong)
    assert sum(row["declines"] for row in rows) == len(rows) / 2


@pytest.mark.parametrize(
    ("reference", "decision", "kept"),
    [
        (
            TurnDecision("find", "{}"),
            TurnDecision("find", "{}"),
            {"calls": 1, "tool": 1, "arguments": 1, "helps": 1},
        ),
        (
            TurnDecision("find", "{}"),
            TurnDecision("find", "[]"),
            {"calls": 1, "tool": 1, "arguments": 0, "helps": 1},
        ),
        (
            TurnDecision("find", "{}"),
            TurnDecision("other", "{}"),
            {"calls": 1, "tool": 0, "arguments": 0, "helps": 1},
        ),
        (
            TurnDecision("find", "{}"),
            TurnDecision(declines=True),
            {"calls": 0, "tool": 0, "arguments": 0, "helps": 0},
        ),
        (TurnDecision(declines=True), TurnDecision(), {"talks": 1, "declines": 0}),
        (TurnDecision(declines=True), TurnDecision("find", "{}"), {"talks": 0, "declines": 0}),
        (TurnDecision(), TurnDecision(declines=True), {"talks": 1, "helps": 0}),
    ],
)
def test_kinds_are_of_the_turns_that_the_reference_makes_so(
    reference: TurnDecision, decision: TurnDecision, kept: dict[str, int]
) -> None:
    found = kept_kinds(reference, decision)
    assert found == {keeps(kind): value for kind, value in kept.items()}


def test_a_set_of_a_python_call_is_one_decision_in_every_process() -> None:
    import subprocess
    import sys

    code = (
        "from eval_gates.decisions.turn_decision import read_decision;"
        'print(read_decision(\'find(x={"a", "b", "c", "d"})\', (), {\'find\'}).arguments)'
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in range(4)
    }
    assert len(told) == 1

"""Logs as teams have them: every turn is found, and what is damaged is named by its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from eval_gates.suites.chat_logs import read_turns
from eval_gates.suites.decision_task import DecisionsTask
from eval_gates.suites.decisions import CARRIED_FILE, CARRIED_TOOLS, Decisions
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from prepare.errors import EvaluationDataError

ASK = {"role": "user", "content": "Weather in Rome?"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "21"}
SAID = {"role": "assistant", "content": "21 degrees."}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def call(*arguments: Any) -> dict[str, Any]:
    """A turn of the assistant that calls with each of these."""
    calls = [
        {"id": "c", "type": "function", "function": {"name": "find", "arguments": each}}
        for each in arguments
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def read(*rows: dict[str, Any]) -> Any:
    return read_turns([(f"logs.jsonl, line {n}", row) for n, row in enumerate(rows, start=1)])


def test_each_place_at_which_the_assistant_writes_is_a_turn() -> None:
    row = {"messages": [ASK, call("{}"), RESULT, SAID, ASK], "tools": [TOOL]}
    turns, remarks = read(row)
    assert [len(turn.messages) for turn in turns] == [1, 3, 5]
    assert [turn.number for turn in turns] == [0, 1, 2]
    assert not remarks


def test_the_logs_own_last_answer_is_not_read() -> None:
    turns, _ = read({"messages": [ASK, SAID]})
    assert [turn.messages for turn in turns] == [[ASK]]


def test_lines_of_one_session_do_not_repeat_a_turn() -> None:
    growing = [[ASK], [ASK, SAID, ASK], [ASK, SAID, ASK, SAID]]
    turns, _ = read(*({"session": "s", "messages": each} for each in growing))
    assert [(turn.session, turn.number, len(turn.messages)) for turn in turns] == [
        ("s", 0, 1),
        ("s", 1, 3),
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_arguments_are_a_text_or_an_object(arguments: Any) -> None:
    turns, remarks = read({"messages": [ASK, call(arguments), RESULT]})
    (found,) = turns[-1].messages[1]["tool_calls"]
    assert found["function"]["arguments"] == '{"a": 1}'
    assert not remarks


def test_parallel_calls_stay_together() -> None:
    turns, remarks = read({"messages": [ASK, call("{}", "{}"), RESULT, RESULT]})
    assert [len(turn.messages) for turn in turns] == [1, 4]
    assert len(turns[1].messages[1]["tool_calls"]) == 2
    assert not remarks


@pytest.mark.parametrize(
    "damaged",
    [
        call('{"a": "Ro'),
        call("Rome"),
        call("[1]"),
        call(7),
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]},
    ],
    ids=["cut off", "no JSON", "a list", "a number", "empty", "without a name"],
)
def test_a_damaged_answer_ends_its_session_and_is_named_by_its_line(damaged: Any) -> None:
    sound = {"messages": [ASK, SAID, ASK]}
    turns, remarks = read(sound, {"messages": [ASK, damaged, RESULT, SAID, ASK]})
    assert [(turn.session, len(turn.messages)) for turn in turns] == [
        ("session/0", 1),
        ("session/0", 3),
        ("session/1", 1),
    ]
    (remark,) = remarks
    assert remark.startswith("logs.jsonl, line 2, message 2: ")


def test_a_developer_is_read_as_the_system_and_named() -> None:
    turns, remarks = read({"messages": [{"role": "developer", "content": "Be brief."}, ASK]})
    assert turns[0].messages[0] == {"role": "system", "content": "Be brief."}
    (remark,) = remarks
    assert remark.startswith("logs.jsonl, line 1, message 1: ")


def test_the_first_api_of_functions_is_read() -> None:
    message = {"role": "assistant", "function_call": {"name": "find", "arguments": "{}"}}
    turns, _ = read({"messages": [ASK, message, RESULT], "functions": [TOOL["function"]]})
    assert turns[1].tools == [TOOL]
    assert turns[1].messages[1]["tool_calls"][0]["function"]["name"] == "find"


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({}, ""),
        ({"messages": []}, ""),
        ({"messages": "hello"}, ""),
        ({"messages": ["hello"]}, ", message 1"),
        ({"messages": [{"content": "no role"}]}, ", message 1"),
        ({"messages": [{"role": 7, "content": "x"}]}, ", message 1"),
        ({"messages": [ASK, {"role": "robot", "content": "x"}]}, ", message 2"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ", message 1"),
        ({"messages": [{"role": "user", "content": 7}]}, ", message 1"),
        ({"messages": [ASK, {"role": "assistant", "tool_calls": "x"}]}, ", message 2"),
        ({"messages": [SAID]}, ""),
        ({"messages": [ASK], "tools": [TOOL] * 100}, ""),
        ({"messages": [ASK], "tools": "find"}, ""),
        ({"messages": [ASK], "tools": [{"function": "find"}]}, ""),
        ({"messages": [ASK], "tools": [7]}, ""),
    ],
)
def test_lines_that_are_no_sessions(row: dict[str, Any], place: str) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        read({"messages": [ASK]}, row)
    assert caught.value.where == f"logs.jsonl, line 2{place}"


def test_what_was_read_otherwise_is_told(tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    rows = [{"messages": [ASK, call('{"a'), RESULT, SAID], "n": n} for n in range(9)]
    rows = [{**row, "messages": [{**ASK, "content": str(row["n"])}, call('{"a')]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    listener = Listener()
    order = QuestionOrder(QuestionSource(kind="folder"), file, tmp_path, listener)
    questions, _ = Decisions().questions(DecisionsTask(), order)
    assert len(questions) == 9
    assert sum(f"{file}, line" in note for note in listener.notes) == 5
    assert any(note.startswith("4 further") for note in listener.notes)


def test_the_carried_requests_name_carried_tools() -> None:
    names = [row["name"] for _, row in read_rows(CARRIED_TOOLS)]
    assert len(names) == len(set(names)) == 128
    rows = [row for _, row in read_rows(CARRIED_FILE)]
    assert len(rows) == 150
    assert {name for row in rows for name in row["tools"]} <= set(names)
    assert {len(row["tools"]) for row in rows} >= {1, 2, 4, 8, 16, 32, 64, 128}
    wanted = [row["expects"] for row in rows]
    assert (wanted.count("call"), wanted.count("decline")) == (100, 24)

"""Logs as teams have them: every turn is found, and what is damaged is named by its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from eval_gates.decisions.suite import CARRIED_FILE, CARRIED_TOOLS, Decisions
from eval_gates.decisions.task import DecisionsTask
from eval_gates.rows import Question
from eval_gates.suites.chat_logs import TEXTS, read_turns
from eval_gates.suites.fidelity import Fidelity, FidelityTask
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, SuiteKind
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


SUITES: list[tuple[SuiteKind[Any], Any]] = [
    (Fidelity(), FidelityTask()),
    (Decisions(), DecisionsTask()),
]
both_suites = pytest.mark.parametrize(("kind", "task"), SUITES, ids=["fidelity", "decisions"])


def laid_out(
    kind: SuiteKind[Any], task: Any, folder: Path, content: bytes
) -> tuple[list[Question], list[str]]:
    """What a suite lays out of a log, and what it says."""
    file = folder / "logs.jsonl"
    file.write_bytes(content)
    listener = Listener()
    order = QuestionOrder(QuestionSource(kind="folder"), file, folder, listener)
    questions, _ = kind.questions(task, order)
    kind.open(task, questions, folder)
    return questions, listener.notes


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


SOUND = {"messages": [ASK, SAID, ASK], "tools": [TOOL]}


@both_suites
@pytest.mark.parametrize(
    "message",
    [
        call('{"a": "Ro'),
        call("Rome"),
        call("[1]"),
        call(7),
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": " \n"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]},
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": '<tool_call>{"name": "find"}</tool_call>'},
    ],
    ids=[
        "cut off",
        "no JSON",
        "a list",
        "a number",
        "empty",
        "blank",
        "without a name",
        "a developer",
        "a call in the text, next to calls of the API",
    ],
)
def test_both_suites_name_the_line_of_what_they_read_otherwise(
    kind: SuiteKind[Any], task: Any, message: dict[str, Any], tmp_path: Path
) -> None:
    row = {"messages": [ASK, message, ASK, call("{}"), RESULT, SAID, ASK], "tools": [TOOL]}
    questions, notes = laid_out(kind, task, tmp_path, lines(SOUND, row))
    assert len(questions) > 1
    (note,) = notes
    assert note.startswith(f"{tmp_path / 'logs.jsonl'}, line 2, message 2: ")


@both_suites
@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"messages": [ASK], "tools": [TOOL] * 100}, ""),
        ({"messages": [ASK], "tools": "find"}, ""),
        ({"messages": [ASK], "tools": [{"name": "find", "input_schema": {}}]}, ""),
        ({"messages": [ASK], "tools": [{"function": {"name": "find", "parameters": "x"}}]}, ""),
        ({"messages": [ASK, {"role": "robot", "content": "x"}]}, ", message 2"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, ", message 1"),
        ({"messages": [ASK, {"role": "assistant", "tool_calls": "x"}]}, ", message 2"),
        ({"messages": [SAID]}, ""),
    ],
)
def test_both_suites_refuse_a_line_by_its_place(
    kind: SuiteKind[Any], task: Any, row: dict[str, Any], place: str, tmp_path: Path
) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        laid_out(kind, task, tmp_path, lines(SOUND, row))
    assert caught.value.where == f"{tmp_path / 'logs.jsonl'}, line 2{place}"


@both_suites
def test_both_suites_take_what_logs_may_have(
    kind: SuiteKind[Any], task: Any, tmp_path: Path
) -> None:
    parallel = call({"a": 1}, '{"a": 2}', None, "")
    row = {"messages": [ASK, parallel, RESULT, RESULT, SAID, ASK], "tools": [TOOL["function"]]}
    _, notes = laid_out(kind, task, tmp_path, lines(SOUND, row))
    assert not notes
    laid = [row for _, row in read_rows(tmp_path / TEXTS)]
    called = [m["tool_calls"] for row in laid for m in row["messages"] if "tool_calls" in m]
    arguments = [[each["function"]["arguments"] for each in calls] for calls in called]
    assert arguments == [['{"a": 1}', '{"a": 2}', "{}", "{}"]]
    assert all(row["tools"] == [TOOL] for row in laid if "tools" in row)


@both_suites
def test_line_ends_and_marks_of_windows_change_nothing(
    kind: SuiteKind[Any], task: Any, tmp_path: Path
) -> None:
    content = lines(SOUND, {"messages": [ASK]})
    plain, _ = laid_out(kind, task, tmp_path, content)
    windows = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
    assert laid_out(kind, task, tmp_path, windows)[0] == plain


@both_suites
def test_a_log_in_utf_16_is_refused_by_its_file(
    kind: SuiteKind[Any], task: Any, tmp_path: Path
) -> None:
    content = lines(SOUND).decode().encode("utf-16")
    with pytest.raises(EvaluationDataError) as caught:
        laid_out(kind, task, tmp_path, content)
    assert caught.value.where == str(tmp_path / "logs.jsonl")


@both_suites
def test_a_session_of_a_million_tokens_is_kept_once(
    kind: SuiteKind[Any], task: Any, tmp_path: Path
) -> None:
    """Its 300 turns have what is before them in common."""
    said = "the quick brown fox jumps " * 700
    messages = [message for _ in range(300) for message in ({**ASK, "content": said}, SAID)]
    content = lines({"messages": [*messages, ASK]}, {"messages": [ASK]})
    questions, _ = laid_out(kind, task, tmp_path, content)
    assert len(questions) == (2 if isinstance(kind, Fidelity) else 302)
    assert (tmp_path / TEXTS).stat().st_size < 1.1 * len(content)


def test_turns_of_a_session_share_a_beginning_by_their_own_lines_only() -> None:
    """Equal turns of several lines are one; what was told otherwise is another chain."""
    other = {"role": "user", "content": "Another."}
    turns, _ = read(
        {"session": "s", "messages": [ASK, SAID, ASK]},
        {"session": "s", "messages": [ASK, SAID, other, SAID, ASK]},
        {"session": "t", "messages": [ASK, SAID, ASK]},
    )
    assert [(turn.session, turn.number, turn.after) for turn in turns] == [
        ("s", 0, None),
        ("s", 1, 0),
        ("s", 2, 0),
        ("s", 3, 2),
        ("t", 0, None),
        ("t", 1, 0),
    ]
    assert turns[0].digest == turns[4].digest
    assert turns[1].digest == turns[5].digest
    assert len({turn.digest for turn in turns}) == 4


def test_a_null_session_is_none() -> None:
    turns, _ = read(*({"session": None, "id": None, "messages": [ASK]} for _ in range(2)))
    assert [turn.session for turn in turns] == ["session/0", "session/1"]


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
    turns, remarks = read({"messages": [ASK, call(arguments), RESULT], "tools": [TOOL]})
    (found,) = turns[-1].messages[1]["tool_calls"]
    assert found["function"]["arguments"] == '{"a": 1}'
    assert not remarks


def test_what_a_line_does_not_offer_or_did_not_ask_is_told() -> None:
    other = {**RESULT, "tool_call_id": "nobody's"}
    silent = {"role": "user", "content": None}
    row = {"messages": [silent, call("{}", "{}"), RESULT, other, SAID, ASK], "tools": []}
    _, remarks = read(row)
    places = [remark.place for remark in remarks]
    assert places == [f"logs.jsonl, line 1, message {number}" for number in (1, 2, 4)]
    # Reports have the remarks, and logs are private.
    (tool,) = {call["function"]["name"] for call in row["messages"][1]["tool_calls"]}
    assert not any(name in remark.what for remark in remarks for name in (tool, "nobody's"))


def test_parallel_calls_stay_together() -> None:
    row = {"messages": [ASK, call("{}", "{}"), RESULT, RESULT], "tools": [TOOL]}
    turns, remarks = read(row)
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
    assert remark.place == "logs.jsonl, line 2, message 2"


def test_a_developer_is_read_as_the_system_and_named() -> None:
    turns, remarks = read({"messages": [{"role": "developer", "content": "Be brief."}, ASK]})
    assert turns[0].messages[0] == {"role": "system", "content": "Be brief."}
    (remark,) = remarks
    assert remark.place == "logs.jsonl, line 1, message 1"


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
    # Each fault once, with its first places.
    (cut_off,) = [note for note in listener.notes if "cut off" in note]
    assert cut_off.count(f"{file}, line") == 3
    assert "6 further places" in cut_off


def test_the_carried_requests_name_carried_tools() -> None:
    names = [row["name"] for _, row in read_rows(CARRIED_TOOLS)]
    assert len(names) == len(set(names)) == 128
    rows = [row for _, row in read_rows(CARRIED_FILE)]
    assert len(rows) == 150
    assert {name for row in rows for name in row["tools"]} <= set(names)
    assert {len(row["tools"]) for row in rows} >= {1, 2, 4, 8, 16, 32, 64, 128}
    wanted = [row["expects"] for row in rows]
    assert (wanted.count("call"), wanted.count("decline")) == (100, 24)


@pytest.mark.parametrize("ids", [False, True])
def test_requests_that_a_server_logged_are_one_session(*, ids: bool) -> None:
    """Each has all that was said before: as sessions, 20 lines would count 20 times."""
    said: list[dict[str, str]] = []
    rows = []
    for number in range(20):
        said = [*said, {"role": "user", "content": f"q{number}"}]
        name = {"id": f"chatcmpl-{number}"} if ids else {}
        rows.append((f"line {number}", {"messages": said, **name}))
        said = [*said, {"role": "assistant", "content": f"a{number}"}]
    turns, remarks = read_turns(rows)
    assert len({turn.session for turn in turns}) == 1
    assert len(turns) == 20
    assert len(remarks) == 19


def test_sessions_that_are_named_may_begin_alike() -> None:
    messages = [{"role": "user", "content": "hi"}]
    rows = [(name, {"session": name, "messages": messages}) for name in "ab"]
    assert [turn.session for turn in read_turns(rows)[0]] == ["a", "b"]


@pytest.mark.parametrize(
    "differs",
    [
        lambda n: {},
        lambda n: {"tools": [{**TOOL, "function": {**TOOL["function"], "name": f"f{n}"}}]},
        lambda n: {"system": f"It is 2026-11-30 10:0{n}."},
    ],
    ids=["nothing", "tools", "a clock"],
)
def test_what_was_said_joins_the_lines_of_a_session(differs: Any) -> None:
    """A clock in the system prompt, or a tool that is added, made each request a session."""
    rows = []
    for user in ("a", "b"):
        said: list[dict[str, Any]] = []
        for turn in range(4):
            said.append({"role": "user", "content": f"{user} asks {turn}"})
            own = dict(differs(turn))
            system = [{"role": "system", "content": own.pop("system", "Be brief.")}]
            rows.append({"messages": [*system, *said], **own})
            said.append({"role": "assistant", "content": f"answer {turn}"})
    turns, remarks = read(*rows)
    assert len({turn.session for turn in turns}) == 2
    assert len({turn.digest for turn in turns}) == (8 if differs(1) == {} else 20)
    assert {remark.what for remark in remarks} == {"it continues the session of an earlier line"}


@pytest.mark.parametrize("name", ["", " "])
def test_a_session_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        read({"messages": [ASK]}, {"messages": [ASK], "session": name})
    assert caught.value.where == "logs.jsonl, line 2"


def test_equal_ids_are_one_session_and_said_aloud() -> None:
    other = {"role": "user", "content": "What time is it?"}
    turns, remarks = read(
        {"messages": [ASK], "id": "v2"},
        {"messages": [other], "id": "v2"},
        {"messages": [SAID, ASK]},
    )
    assert [turn.session for turn in turns] == ["v2", "v2", "session/2"]
    (remark,) = remarks
    assert (remark.place, remark.what[:30]) == (
        "logs.jsonl, line 2",
        "its id is that of an earlier l",
    )


def test_ids_that_are_null_are_none(tmp_path: Path) -> None:
    rows = [{"id": id_, "prompt": f"say {n}"} for n, id_ in enumerate((None, None, "", 0))]
    questions, _ = laid_out(Fidelity(), FidelityTask(), tmp_path, lines(*rows))
    names = [question.id for question in questions]
    assert names == ["conversation/0", "conversation/1", "conversation/2", "0"]


def test_a_document_next_to_messages_is_no_text_to_summarize(tmp_path: Path) -> None:
    """Logs of retrieval have such a key; the user's conversation was replaced by it."""
    row = {"messages": [ASK], "document": "contract-17.pdf"}
    laid_out(Fidelity(), FidelityTask(), tmp_path, lines(row))
    (kept,) = [row for _, row in read_rows(tmp_path / TEXTS)]
    assert kept["messages"] == [ASK]
    (alone,) = lines({"document": "Tides."}).splitlines()
    laid_out(Fidelity(), FidelityTask(), tmp_path, alone)
    (kept,) = [row for _, row in read_rows(tmp_path / TEXTS)]
    assert kept["messages"][0]["content"].endswith("Tides.")


@pytest.mark.parametrize("tools", [None, []])
def test_functions_are_read_where_tools_are_empty(tools: Any) -> None:
    (turn,), _ = read({"messages": [ASK], "tools": tools, "functions": [TOOL["function"]]})
    assert turn.tools == [TOOL]


def test_the_first_api_of_functions() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "find"}}
    result = {"role": "function", "name": "find", "content": "21"}
    turns, remarks = read({"messages": [ASK, called, result], "functions": [TOOL["function"]]})
    read_result = turns[-1].messages[-1]
    assert read_result["role"] == "tool"
    assert read_result["tool_call_id"] == turns[-1].messages[-2]["tool_calls"][0]["id"]
    assert [remark.what for remark in remarks] == ["the role function is read as tool"]


def test_a_refusal_is_what_the_assistant_wrote() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    turns, remarks = read({"messages": [ASK, refused, ASK]})
    assert turns[0].answer is not None
    assert turns[0].answer["content"] == "I cannot help with that."
    assert (len(turns), remarks) == (2, [])


def test_a_choice_of_tools_is_not_sent_and_said_aloud() -> None:
    _, remarks = read({"messages": [ASK], "tools": [TOOL], "tool_choice": "required"})
    assert [remark.what for remark in remarks] == [
        "its tool_choice is not sent: each arm is free to call"
    ]


def test_conversations_of_others_that_begin_alike_are_not_joined() -> None:
    """One abandoned greeting joined the sessions of all customers."""

    def begun(customer: str, *messages: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": f"You serve {customer}."}, *messages]}

    hello = {"role": "assistant", "content": "Hello!"}
    hi = {"role": "user", "content": "hi"}
    rows = [begun("Ada", hi), begun("Ada", hello)]
    rows += [begun(name, hello, hi, SAID, ASK) for name in ("Bea", "Cid", "Dov")]
    rows += [begun(name, hi, SAID, ASK) for name in ("Eve", "Fay")]
    turns, remarks = read(*rows)
    assert len({turn.session for turn in turns}) == 7
    assert remarks == []

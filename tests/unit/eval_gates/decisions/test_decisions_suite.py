"""The suite `decisions`: sessions as they are laid out, asked of arms, and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from reading_stand_in import ReadingStandIn

from eval_gates.answer_validity import check_answers, remarks_on
from eval_gates.ask import Client, RefusedError
from eval_gates.decisions.parts import tool_label
from eval_gates.decisions.suite import Decisions, carried_tools
from eval_gates.decisions.task import AS_LOGGED, DecisionsTask
from eval_gates.decisions.turn_decision import KINDS, keeps, read_decision
from eval_gates.decisions.written_turn import as_text
from eval_gates.quality_gate import gate_rule_of, judge_quality
from eval_gates.question_set import judged_apart
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from pipeline.plan.data_sources import SourceResolver
from prepare.digest import FileDigests
from prepare.errors import EvaluationDataError, StageError, UsageError
from recipes.policy import Policy

SECRET = "my password is hunter2"
TOOL = {
    "type": "function",
    "function": {"name": "secret_find", "description": "Find.", "parameters": {"type": "object"}},
}
CALL = '<tool_call>{"name": "secret_find", "arguments": {"place": "hunter2"}}</tool_call>'
LOG: list[dict[str, Any]] = [
    {"id": "a", "messages": [{"role": "user", "content": SECRET}], "tools": [TOOL], "user": "u"},
    {
        "id": "b",
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "two"},
        ],
        "tools": [TOOL, "get_weather"],
        "user": "v",
    },
    {"id": "c", "messages": [{"role": "user", "content": "bad"}], "user": "v"},
]
TASK = DecisionsTask(prompt_format="chat")
Says = Callable[[str], str]


class Arm(ReadingStandIn):
    """A server whose model writes by a rule of the rendered prompt."""

    def __init__(self, says: Says, **given: Any) -> None:
        self.says = says
        self.first = 7
        super().__init__(**given)

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            return super().answer(path, asked)
        assert asked["return_tokens_as_token_ids"]  # equal texts may be different tokens
        text = self.says("".join(map(chr, asked["prompt"])))
        top = {"token_id:7": -0.25, "token_id:8": -2.0}
        if self.first == 8:
            top = {"token_id:7": -3.0, "token_id:8": -0.5}
        scored = {"tokens": [f"token_id:{self.first}"], "top_logprobs": [top]}
        return {"choices": [{"text": text, "logprobs": scored}], "usage": {"completion_tokens": 9}}


class ChatArm(Arm):
    """A server that reads calls itself, and renders no prompt for others."""

    def __init__(self) -> None:
        super().__init__(sound, paths=["/v1/chat/completions"])

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if "bad" in json.dumps(asked["messages"]):
            message = {"role": "assistant", "content": "I cannot help with that."}
        else:
            arguments = json.dumps({"place": "hunter2"})
            call = {"type": "function", "function": {"name": "secret_find", "arguments": arguments}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"choices": [{"message": message}], "usage": {"completion_tokens": 9}}


def sound(prompt: str) -> str:
    """Calls, except where it is asked for something bad."""
    return "I cannot help with that." if '"bad"' in prompt else CALL


def laid_out(folder: Path, task: DecisionsTask = TASK) -> tuple[Decisions, list[Question]]:
    file = folder / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LOG))
    kind = Decisions()
    order = QuestionOrder(QuestionSource(kind="folder"), file, folder, Listener())
    questions, _ = kind.questions(task, order)
    questions = judged_apart(kind, task, questions, [file], lambda text: None)
    kind.open(task, questions, folder)
    return kind, questions


def rows_of(
    kind: Decisions,
    questions: list[Question],
    url: str,
    before: list[Answer] | None = None,
    task: DecisionsTask = TASK,
    **client: Any,
) -> list[Answer]:
    asker = Client(url, "m", kind.settings(task), **{"max_length": 100_000, **client})
    baseline = {row.id: row for row in before} if before is not None else None
    asked = [kind.render(task, each, None) for each in questions]
    replies = kind.ask(task, asker, asked, baseline)
    given = [AnsweredQuestion(q, r, q) for q, r in zip(asked, replies, strict=True)]
    scored = kind.score_batch(task, given, Listener())
    return [Answer.of(each, own, thinks=False) for each, own in zip(given, scored, strict=True)]


def three_arms(folder: Path, variant: Says, task: DecisionsTask = TASK) -> list[list[Answer]]:
    """The reference, the baseline, and a variant."""
    kind, questions = laid_out(folder, task)
    with Arm(sound) as server:
        reference = rows_of(kind, questions, server.url, None, task)
        baseline = rows_of(kind, questions, server.url, reference, task)
    with Arm(variant) as server:
        return [reference, baseline, rows_of(kind, questions, server.url, baseline, task)]


def test_a_tools_label_is_of_any_name() -> None:
    """A model may write half of a surrogate pair."""
    names = ("refund", "refund ", "\ud83d", "", "x" * 10_000)
    assert len({tool_label(name) for name in names}) == len(names)
    assert tool_label("refund") == "tool 1d630127108f"  # as sha256sum has it


def test_turns_of_a_session_are_one_cluster(tmp_path: Path) -> None:
    _, questions = laid_out(tmp_path)
    assert [each.id for each in questions] == ["a/0", "b/0", "b/1", "c/0"]
    assert len({each.cluster for each in questions}) == 3
    _, questions = laid_out(tmp_path, DecisionsTask(prompt_format="chat", cluster_by="user"))
    assert len({each.cluster for each in questions}) == 2


def test_an_equal_variant_decides_all_alike(tmp_path: Path) -> None:
    reference, baseline, variant = three_arms(tmp_path, sound)
    for rows in (reference, baseline, variant):
        assert [row.score for row in rows] == [1.0] * 4
        check_answers("logs", rows, max_tokens=64, is_complete=True)
    assert [row.own.get("keeps_calls") for row in variant] == [1, 1, 1, None]
    assert [row.own.get("keeps_declines") for row in variant] == [None, None, None, 1]
    labels = [row.own.get("tool") for row in baseline]
    assert [label is not None for label in labels] == [True, True, True, False]
    assert labels == [row.own.get("tool") for row in variant]
    assert labels[0] == tool_label("secret_find")
    assert [row.prompt_sha256 for row in variant] == [row.prompt_sha256 for row in reference]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("It is sunny.", {"calls", "tool", "arguments"}),
        (CALL.replace("secret_find", "get_weather"), {"tool", "arguments"}),
        (CALL.replace("hunter2", "Rome"), {"arguments"}),
        ("I cannot help with that.", {"calls", "tool", "arguments", "helps"}),
    ],
)
def test_another_decision_is_lost_by_its_kind(tmp_path: Path, text: str, lost: set[str]) -> None:
    _, _, variant = three_arms(
        tmp_path, lambda prompt: text if '"one"' in prompt else sound(prompt)
    )
    assert [row.score for row in variant] == [1.0, 0.0, 0.0, 1.0]
    own = variant[1].own
    assert {kind for kind in KINDS if own.get(keeps(kind)) == 0} == lost


def test_a_variant_that_refuses_less_is_seen(tmp_path: Path) -> None:
    _, _, variant = three_arms(tmp_path, lambda prompt: "Sure." if '"bad"' in prompt else CALL)
    assert (variant[3].score, variant[3].own["keeps_declines"]) == (0.0, 0)


def test_the_reference_is_the_first_start_for_variants_too(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        reference = rows_of(kind, questions, server.url)
    with Arm(lambda prompt: "No call.") as server:
        baseline = rows_of(kind, questions, server.url, reference)
    with Arm(sound) as server:
        variant = rows_of(kind, questions, server.url, baseline)
    assert [row.score for row in baseline] == [0.0] * 4
    assert [row.score for row in variant] == [1.0] * 4


def test_the_margin_is_of_the_references_first_token(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        reference = rows_of(kind, questions, server.url)
        server.first = 8
        variant = rows_of(kind, questions, server.url, reference)
    assert [row.own["margin"] for row in reference] == [1.75] * 4
    assert [row.own["margin"] for row in variant] == [-2.5] * 4


def test_a_chat_endpoint_is_asked_by_chat_alone(tmp_path: Path) -> None:
    """It renders no prompt for others: nothing is tokenized."""
    kind, questions = laid_out(tmp_path)
    with ChatArm() as server:
        rows = rows_of(kind, questions, server.url, by_chat=True)
        paths = {path for path, _ in server.requests}
    assert paths == {"/v1/chat/completions"}
    assert [row.own["called"] for row in rows] == [True, True, True, False]
    assert [row.own["declined"] for row in rows] == [False, False, False, True]


def test_another_template_ends_the_arm_before_a_score(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        reference = rows_of(kind, questions, server.url)
    with Arm(sound, template="<s>") as server:
        with pytest.raises(StageError, match="otherwise than the baseline"):
            rows_of(kind, questions, server.url, reference)
        assert {path for path, _ in server.requests} == {"/tokenize"}


def test_a_turn_that_does_not_fit_is_named(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server, pytest.raises(StageError, match="'a/0' is too long"):
        rows_of(kind, questions, server.url, max_length=100)


def test_a_turn_that_just_fits_is_asked(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        fits = 100
        for _ in questions:
            try:
                assert rows_of(kind, questions, server.url, max_length=fits)
                break
            except StageError as error:
                has, most = (
                    int(number) for number in re.findall(r"(\d+) (?:tokens|fit)", str(error))
                )
                fits += has - most
        with pytest.raises(StageError, match="is too long"):
            rows_of(kind, questions, server.url, max_length=fits - 1)
    assert fits > 100


def test_a_turn_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with (
        Arm(sound, refuses='"two"') as server,
        pytest.raises(RefusedError, match=r"'b/1'.*roles must alternate"),
    ):
        rows_of(kind, questions, server.url)


def test_a_model_that_is_still_thinking_has_decided_nothing(tmp_path: Path) -> None:
    _, _, variant = three_arms(tmp_path, lambda prompt: "<think>should I call")
    assert [row.score for row in variant] == [0.0] * 4
    with pytest.raises(StageError, match="cut off before they could be read"):
        check_answers("logs", variant, max_tokens=64, is_complete=True)
    _, _, variant = three_arms(tmp_path, lambda prompt: f"<think>call</think>{sound(prompt)}")
    assert [row.score for row in variant] == [1.0] * 4


def test_the_ladder_has_the_sessions_tools_first_and_then_carried_ones(tmp_path: Path) -> None:
    task = DecisionsTask(prompt_format="chat", ladder=[16, 1, 4])
    kind, questions = laid_out(tmp_path, task)
    groups = [(each.id, each.group) for each in questions]
    assert groups == [
        ("a/0", AS_LOGGED),
        ("a/0/1 tools", "1 tools"),
        ("a/0/4 tools", "4 tools"),
        ("a/0/16 tools", "16 tools"),
        ("b/0", AS_LOGGED),
        ("b/1", AS_LOGGED),
        ("b/1/4 tools", "4 tools"),
        ("b/1/16 tools", "16 tools"),
        ("c/0", AS_LOGGED),
    ]
    with Arm(sound) as server:
        rows_of(kind, questions, server.url, task=task)
        sent = [body for path, body in server.requests if path == "/tokenize"]
    assert [len(body.get("tools", ())) for body in sent] == [1, 1, 4, 16, 2, 2, 4, 16, 0]
    names = [tool["function"]["name"] for tool in sent[6]["tools"]]
    assert names[:2] == ["secret_find", "get_weather"]
    assert len(set(names)) == 4
    curve = kind.groups(*([Answer("x", "p", 1.0, group=each.group) for each in questions],) * 2)
    rungs = [report.group for report in curve if report.kind == "rung"]
    assert rungs == [AS_LOGGED, "1 tools", "4 tools", "16 tools"]


def test_the_ladder_ends_where_the_served_model_ends() -> None:
    suite = Decisions.policy.model_validate(
        {
            "kind": "decisions",
            "ladder": [4, 64],
            "margins": {"fp8": 0.1},
            "at_most_tools": {"tools": 4, "margins": {"fp8": 0.1}},
        }
    )
    notes: list[str] = []
    fitted = Decisions().fit("d", suite, 4_096, notes.append)
    assert (fitted.ladder, fitted.max_tools) == ([4], 27)
    assert len(notes) == 2
    assert Decisions().fit("d", suite, 32_768, notes.append) == suite
    gated = suite.model_copy(
        update={"at_most_tools": suite.at_most_tools.model_copy(update={"tools": 64})}
    )
    with pytest.raises(UsageError):
        Decisions().fit("d", gated, 4_096, notes.append)


@pytest.mark.parametrize(
    "changes",
    [
        {"ladder": [4, 4]},
        {"cluster_by": None},
        {"noise_floor_questions": 10},
        {"at_most_tools": {"margins": {"fp8": 0.1}}},
        {"at_most_tools": {"tools": 16, "margins": {"fp8": 0.1}}, "ladder": [4]},
        {"kinds": {"sings": {"margins": {"fp8": 0.1}}}},
        {"kinds": {"calls": {"margins": {}}}},
    ],
)
def test_policies_that_are_no_policies(changes: dict[str, Any]) -> None:
    sound = {"kind": "decisions", "margins": {"fp8": 0.1}}
    assert Decisions.policy.model_validate(sound)
    with pytest.raises(ValueError, match="1 validation error"):
        Decisions.policy.model_validate({**sound, **changes})


def test_what_is_bundled_has_no_text(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        rows = rows_of(kind, questions, server.url)
    public = [{k: v for k, v in row.to_row().items() if k not in kind.private_keys} for row in rows]
    told = json.dumps([public, [each.to_row() for each in questions]])
    assert "hunter2" not in told
    assert "secret_find" not in told
    assert SECRET in (tmp_path / "conversations.jsonl").read_text()


def test_an_unknown_carried_tool_is_named(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x"}], "tools": ["no_such_tool"]}
    (tmp_path / "logs.jsonl").write_text(json.dumps(row) + "\n")
    kind = Decisions()
    order = QuestionOrder(
        QuestionSource(kind="folder"), tmp_path / "logs.jsonl", tmp_path, Listener()
    )
    with pytest.raises(EvaluationDataError) as caught:
        kind.questions(TASK, order)
    assert "line 1" in str(caught.value.where)


def test_a_conversation_is_a_text_for_models_without_a_template() -> None:
    call = {"function": {"name": "find", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "21"},
    ]
    text = as_text({"messages": messages, "tools": [carried_tools()["show_cart"]]})
    assert text.startswith('tools:\n{"name": "show_cart"')
    assert text.endswith(
        'user: x\n\nassistant: <tool_call>{"name": "find", "arguments": {"a": 1}}</tool_call>'
        "\n\ntool: 21\n\nassistant:"
    )


def written(texts: list[str], reference: str) -> list[Answer]:
    """An arm's answers, compared with a reference that calls in the turns that have a letter."""
    kind = Decisions()
    rows = []
    for number, text in enumerate(texts):
        question = Question(str(number), "", cluster=str(number), group=AS_LOGGED)
        decisions = [
            {**read_decision(words, (), ()).to_row(), "first": None, "is_unread": False}
            for words in (text, CALL if reference[number] == "c" else "It is sunny.")
        ]
        own = {"decision": decisions[0], "reference": decisions[1], "read": "p", "margin": None}
        given = AnsweredQuestion(question, [Reply(str(number), own=own)], question)
        rows.append(Answer.of(given, kind.score(TASK, question, given.replies), thinks=False))
    return rows


@pytest.mark.parametrize(
    ("reference", "verdict"), [("t" * 100, "undecided"), ("c" * 50 + "t" * 50, "pass")]
)
def test_logs_in_which_nothing_is_decided_decide_nothing(reference: str, verdict: str) -> None:
    """A model that writes nothing neither calls nor declines: it would keep every decision."""
    texts = [CALL if turn == "c" else "" for turn in reference]
    logs = {"kind": "decisions", "margins": {"fp8": 0.1}}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"logs": logs}})
    result = judge_quality(
        "logs",
        policy.suites["logs"],
        gate_rule_of(policy.suites["logs"], "fp8", 0.05),
        metric="",
        baseline=written(texts, reference),
        candidate=written(texts, reference),
        again=(),
        guessing=0.0,
    )
    assert result.verdict == verdict


@pytest.mark.parametrize("lost", [slice(0, 4), slice(3, 4)])
def test_a_variant_is_not_compared_with_itself(tmp_path: Path, lost: slice) -> None:
    """The baseline's private texts were deleted or cut in the store."""
    kind, questions = laid_out(tmp_path)
    with Arm(sound) as server:
        reference = rows_of(kind, questions, server.url)
        baseline = rows_of(kind, questions, server.url, reference)
        for row in baseline[lost]:
            for key in kind.private_keys:
                del row.own[key]  # type: ignore[attr-defined]
    with Arm(lambda prompt: "Nothing.") as server, pytest.raises(StageError) as caught:
        rows_of(kind, questions, server.url, baseline)
    assert questions[lost][0].id in caught.value.message


def test_a_gate_on_calls_needs_tools_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    file.write_text("".join(json.dumps({"messages": LOG[0]["messages"]}) + "\n" for _ in range(2)))
    order = QuestionOrder(QuestionSource(kind="folder"), file, tmp_path, Listener())
    gates: dict[str, Any] = {"margins": {"fp8": 0.1}, "prompt_format": "chat"}
    talks = {"talks": {"margins": {"fp8": 0.1}}}
    calls = {"calls": {"margins": {"fp8": 0.1}}}
    Decisions().known_questions(Decisions.policy.model_validate({**gates, "kinds": talks}), order)
    with pytest.raises(EvaluationDataError, match="no line of the log has tools"):
        Decisions().known_questions(
            Decisions.policy.model_validate({**gates, "kinds": calls}), order
        )


def test_each_gates_sessions_are_counted_by_the_logs_own_answers(tmp_path: Path) -> None:
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "secret_find", "arguments": "{}"}}],
    }
    refused = {"role": "assistant", "content": "I cannot help with that."}
    answers = [called, called, called, refused, refused, None]
    rows: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        asked = {"role": "user", "content": f"question {number}"}
        messages = [asked, answer] if answer else [asked]
        rows.append({"messages": messages, "tools": [TOOL, "get_weather"] if number else [TOOL]})
    rows.append(rows[0])  # a copy of another session
    file = tmp_path / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = {kind: {"margins": {"fp8": 0.1}} for kind in ("calls", "talks", "declines", "helps")}
    kinds["tool"] = {"margins": {"fp8": 0.1}, "tools": 2}
    suite = Decisions.policy.model_validate(
        {
            "kind": "decisions",
            "data": str(file),
            "ladder": [1, 2],
            "margins": {"fp8": 0.1},
            "kinds": kinds,
            "at_most_tools": {"tools": 1, "margins": {"fp8": 0.1}},
        }
    )
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"d": suite}})
    sources = SourceResolver(None, "e", FileDigests(tmp_path / "digests.json"), Listener())
    known = sources.known_of(policy)["d"]
    assert known.units(policy.suites["d"]) == 6
    logged = known.logged
    assert logged is not None
    # The last session has a request alone; the first has one tool, and so is on the first rung.
    assert logged.shares == {
        "calls": 3 / 5,
        "tool at 2 tools": 3 / 5,
        "talks": 2 / 5,
        "declines": 2 / 5,
        "helps": 3 / 5,
        "at 1 tools": 1 / 6,
    }
    assert logged.empty == [0.0] * 5
    assert logged.tools == {tool_label("secret_find"): 3}
    # Requests alone do not tell what is decided.
    requests = [{**row, "messages": row["messages"][:1]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in requests))
    again = SourceResolver(None, "e", FileDigests(tmp_path / "digests.json"), Listener())
    known = again.known_of(policy)["d"]
    assert (known.units(policy.suites["d"]), known.logged) == (6, None)


def test_a_thought_of_the_logs_answer_decides_nothing(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "<think>I cannot say that.</think>Paris."}
    rows = [
        {"messages": [{"role": "user", "content": f"question {n}"}, answer], "tools": [TOOL]}
        for n in range(3)
    ]
    file = tmp_path / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = Decisions.policy.model_validate(
        {
            "kind": "decisions",
            "data": str(file),
            "margins": {"fp8": 0.1},
            "kinds": {kind: {"margins": {"fp8": 0.1}} for kind in ("helps", "declines")},
        }
    )
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"d": suite}})
    sources = SourceResolver(None, "e", FileDigests(tmp_path / "digests.json"), Listener())
    logged = sources.known_of(policy)["d"].logged
    assert logged is not None
    assert logged.shares == {"helps": 1.0, "declines": 0.0}
    assert logged.empty == [1.0] * 3


def test_sessions_with_too_many_tools_are_counted(tmp_path: Path) -> None:
    kind = Decisions()
    file = tmp_path / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LOG))
    listener = Listener()
    order = QuestionOrder(QuestionSource(kind="folder"), file, tmp_path, listener)
    kind.questions(DecisionsTask(max_tools=1), order)
    assert any(note.startswith("1 of 3 sessions") for note in listener.notes)


def test_calls_in_a_form_that_is_not_read_are_counted(tmp_path: Path) -> None:
    def unread(prompt: str) -> str:
        return "<tool_call>\n??? find ???\n</tool_call>"

    _, _, rows = three_arms(tmp_path, unread)
    (remark,) = remarks_on(rows, takes_thoughts=True)
    assert remark.startswith("4 of 4 answers have a call in a form that is not read")
    assert [row.own["keeps_tool"] for row in rows if "keeps_tool" in row.own] == [0, 0, 0]

"""The suite `fidelity`: conversations as they are laid out, asked of two arms, and scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from reading_stand_in import SURE, UNSURE, ReadingStandIn

from eval_gates.answer_validity import check_answers
from eval_gates.ask import Client, RefusedError
from eval_gates.clusters import group_by_cluster
from eval_gates.prompt_scores import ScoredToken, thought_end
from eval_gates.question_set import judged_apart
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply
from eval_gates.suites.chat_logs import read_conversation
from eval_gates.suites.fidelity import Fidelity, FidelityTask
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from prepare.errors import EvaluationDataError, StageError

SECRET = "my password is hunter2"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
LOG: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": SECRET}], "user": "a"},
    {"messages": [{"role": "user", "content": "h\u00e9 \U0001f600"}], "tools": [TOOL], "user": "b"},
    {"prompt": "Once upon a time", "user": "a"},
    {
        "messages": [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "long " * 400},
            {"role": "assistant", "content": "this is not asked"},
        ],
        "user": "c",
    },
]
TASK = FidelityTask(prompt_format="chat", max_tokens=16, scored_tokens=256)


def laid_out(folder: Path) -> tuple[Fidelity, list[Question]]:
    file = folder / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LOG))
    kind = Fidelity()
    order = QuestionOrder(QuestionSource(kind="folder"), file, folder, Listener())
    questions, _ = kind.questions(TASK, order)
    kind.open(TASK, questions, folder)
    return kind, questions


def rows_of(
    kind: Fidelity,
    questions: list[Question],
    url: str,
    baseline: list[Answer] | None = None,
    task: FidelityTask = TASK,
) -> list[Answer]:
    client = Client(
        url,
        "m",
        {},
        concurrency=4,
        max_length=4096,
        tokenizer=None,
        answered=lambda number: None,
        note=lambda text: None,
    )
    before = {row.id: row for row in baseline} if baseline is not None else None
    replies = kind.ask(task, client, questions, before)
    asked = [AnsweredQuestion(q, r, q) for q, r in zip(questions, replies, strict=True)]
    scored = kind.score_batch(task, asked, Listener())
    return [Answer.of(each, own, thinks=False) for each, own in zip(asked, scored, strict=True)]


def test_the_baseline_keeps_its_own_tokens(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with ReadingStandIn() as server:
        rows = rows_of(kind, questions, server.url)
    assert [row.score for row in rows] == [1.0] * len(LOG)
    assert [row.nats for row in rows] == pytest.approx([-SURE] * len(LOG))
    assert [row.own["is_cut"] for row in rows] == [False, False, False, True]
    assert all(len(row.own["prompt_ids"]) + 16 < TASK.scored_tokens for row in rows)
    check_answers("logs", rows, max_tokens=TASK.max_tokens, is_complete=True)


def growing_log(file: Path) -> Path:
    """Two sessions as a server logs them: each request has all that was said before."""
    rows = []
    for user in ("a", "b"):
        said: list[dict[str, str]] = []
        for turn in range(3):
            said.append({"role": "user", "content": f"{user} asks {turn}"})
            rows.append({"messages": list(said)})
            said.append({"role": "assistant", "content": f"answer {turn}"})
    rows.append({"prompt": "Once upon a time"})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_lines_that_continue_each_other_are_one_session(tmp_path: Path) -> None:
    file = growing_log(tmp_path / "logs.jsonl")
    source = QuestionSource(kind="folder")
    kind = Fidelity()
    assert kind.known_cluster(TASK, source, file) == "session"
    task = TASK.model_copy(update={"cluster_by": "session"})
    questions, _ = kind.questions(task, QuestionOrder(source, file, tmp_path, Listener()))
    grouped = judged_apart(Fidelity(), task, questions, [file], lambda text: None)
    assert [len(rows) for rows in group_by_cluster(grouped)] == [3, 3, 1]
    assert not any("asks" in json.dumps(each.to_row()) for each in grouped)


def test_separate_conversations_are_values_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LOG))
    kind = Fidelity()
    assert kind.known_cluster(TASK, QuestionSource(kind="folder"), file) is None
    assert kind.known_cluster(TASK, QuestionSource(kind="builtin"), None) is None


def test_a_conversation_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with (
        ReadingStandIn(refuses=SECRET) as server,
        pytest.raises(RefusedError, match=r"about '.*roles must alternate"),
    ):
        rows_of(kind, questions, server.url)


def test_a_variant_reads_the_baselines_tokens(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with ReadingStandIn() as server:
        before = rows_of(kind, questions, server.url)
    with ReadingStandIn(forgets=2) as server:
        rows = rows_of(kind, questions, server.url, before)
    assert [row.prompt_sha256 for row in rows] == [row.prompt_sha256 for row in before]
    for row, first in zip(rows, before, strict=True):
        assert row.own["answer_ids"] == first.own["answer_ids"]
        flips = [place for place, token in enumerate(row.own["answer_ids"]) if (token - 1) % 2 == 0]
        assert row.score == pytest.approx(1 - len(flips) / 16)
        assert row.own["first_flip"] == flips[0]
        assert row.own["margin"] == pytest.approx(SURE - UNSURE)
        assert row.own["near_ties"] == 0


def test_another_template_ends_the_arm_before_a_score(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with ReadingStandIn() as server:
        before = rows_of(kind, questions, server.url)
    with ReadingStandIn(template="<s>") as server:
        with pytest.raises(StageError, match="otherwise than the baseline"):
            rows_of(kind, questions, server.url, before)
        assert not [body for _, body in server.requests if "prompt_logprobs" in body]


@pytest.mark.parametrize(
    "given", [{"can_read": False}, {"value": float("nan")}, {"value": 10**400}]
)
def test_an_endpoint_that_cannot_read_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    kind, questions = laid_out(tmp_path)
    with (
        ReadingStandIn(**given) as server,
        pytest.raises(StageError, match=r"cannot be asked|is broken"),
    ):
        rows_of(kind, questions, server.url)


def test_an_engine_that_ends_is_told_with_half_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval_gates.ask.TRIES", 1)
    kind, questions = laid_out(tmp_path)
    with (
        ReadingStandIn(dies_beyond=200) as server,
        pytest.raises(StageError, match="too long for prompt log-probabilities") as caught,
    ):
        rows_of(kind, questions, server.url)
    assert "scored_tokens: 127" in caught.value.hint


def test_a_variant_reads_no_more_than_a_halved_baseline(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    halved = TASK.model_copy(update={"scored_tokens": TASK.scored_tokens // 2})
    with ReadingStandIn() as server:
        before = rows_of(kind, questions, server.url, task=halved)
        rows = rows_of(kind, questions, server.url, before)
    assert [row.own["prompt_ids"] for row in rows] == [row.own["prompt_ids"] for row in before]
    assert before[-1].own["is_cut"]
    assert len(before[-1].own["prompt_ids"]) == 128 - 17


@pytest.mark.parametrize(
    ("text", "has_begun", "thoughts"),
    [
        ("no thought at all", False, 0),
        ("<think>a</think>b", False, 16),
        ("a</think>b", True, 10),
        ("<think>without an end", False, 21),
        ("without an end", True, 14),
    ],
)
def test_thoughts_are_counted_apart(text: str, has_begun: bool, thoughts: int) -> None:
    tokens = [ScoredToken(-0.1, True, 1.0, letter) for letter in text]
    assert thought_end(tokens, has_begun=has_begun) == thoughts


def test_a_thinking_answers_two_shares(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    kept = [ScoredToken(-0.1, letter != "a", 1.0, letter) for letter in "<think>aa</think>bcda"]
    own = {"scored": kept, "answer_ids": [1], "prompt_sha256": "p"}
    row = kind.score(TASK, questions[0], [Reply("x", 21, own=own)])
    assert row.own["kept_of_thoughts"] == pytest.approx(15 / 17)
    assert row.own["kept_after_thoughts"] == pytest.approx(3 / 4)


@pytest.mark.parametrize(("template", "is_thought"), [("", False), ("<think>", True)])
def test_an_answer_after_a_prompt_that_begins_a_thought_is_thought(
    tmp_path: Path, template: str, is_thought: bool
) -> None:
    kind, questions = laid_out(tmp_path)
    with ReadingStandIn(template=template) as server:
        row = rows_of(kind, questions, server.url)[0]
    assert ("kept_of_thoughts" in row.own) is is_thought
    assert "kept_after_thoughts" not in row.own


def test_what_is_bundled_has_no_text(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    with ReadingStandIn() as server:
        rows = rows_of(kind, questions, server.url)
    public = [{k: v for k, v in row.to_row().items() if k not in kind.private_keys} for row in rows]
    told = json.dumps([public, [each.to_row() for each in questions]])
    assert "hunter2" not in told
    assert not any(str(row.own["prompt_ids"]) in told for row in rows)
    assert SECRET in (tmp_path / "conversations.jsonl").read_text()


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    kind, questions = laid_out(tmp_path)
    texts = tmp_path / "conversations.jsonl"
    texts.write_text(texts.read_text().replace("hunter2", "hunter3"))
    with pytest.raises(EvaluationDataError, match="not those"):
        kind.open(TASK, questions, tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": ["hello"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "assistant", "content": "first"}]},
        {"prompt": ""},
    ],
)
def test_lines_that_are_no_conversations(row: dict[str, Any]) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        read_conversation(row, "logs.jsonl, line 1", [])
    assert str(caught.value.where).startswith("logs.jsonl, line 1")

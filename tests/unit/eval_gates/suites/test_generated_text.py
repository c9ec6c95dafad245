"""Thoughts removed, stop strings applied, answers of both endpoints read."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.generated_text import (
    Completion,
    ToolCall,
    cut_at,
    finish,
    read_chat,
    read_completion,
    remove_thoughts,
)
from recipes.generation import ThoughtMarkers

THINK = ThoughtMarkers(start="<think>", end="</think>")
HARMONY = ThoughtMarkers(start="<|channel|>analysis<|message|>", end="<|channel|>final<|message|>")
USAGE = {"usage": {"completion_tokens": 3}}
# Letters of the markers, but no marker.
plain = st.text(alphabet="<>/thinka \n", max_size=30).filter(
    lambda text: THINK.start not in text and THINK.end not in text
)


@pytest.mark.parametrize(
    ("text", "has_begun", "answer", "is_unclosed"),
    [
        ("<think>a</think>b", False, "b", False),
        ("a</think>b", True, "b", False),
        ("a</think>b", False, "b", False),  # its start was in a prompt that nobody knows
        ("<think>a</think>b", True, "b", False),  # the model writes the start again
        ("b", False, "b", False),
        ("a", True, "", True),
        ("<think>a", False, "", True),
        ("b<think>a", False, "b", True),
        ("<think>a</think>b<think>c</think>d", False, "bd", False),
        ("<think>a</think>b<think>c", False, "b", True),
        ("<think>\n\n</think>", False, "", False),
        ("", False, "", False),
        ("", True, "", True),
    ],
)
def test_thoughts(text: str, has_begun: bool, answer: str, is_unclosed: bool) -> None:
    assert remove_thoughts(text, THINK, has_begun=has_begun) == (answer, is_unclosed)


@given(st.lists(st.tuples(plain, plain), max_size=4), plain)
def test_what_is_not_thought_stays(parts: list[tuple[str, str]], last: str) -> None:
    text = "".join(f"{said}<think>{thought}</think>" for said, thought in parts) + last
    assert remove_thoughts(text, THINK) == ("".join(said for said, _ in parts) + last, False)


@given(plain, plain)
def test_where_the_start_was_written_makes_no_difference(thought: str, said: str) -> None:
    inside, outside = f"<think>{thought}</think>{said}", f"{thought}</think>{said}"
    assert remove_thoughts(inside, THINK) == remove_thoughts(outside, THINK, has_begun=True)


@given(st.text(alphabet="<>/think", max_size=60), st.booleans())
def test_no_text_has_a_complete_thought_left(text: str, has_begun: bool) -> None:
    answer, is_unclosed = remove_thoughts(text, THINK, has_begun=has_begun)
    assert len(answer) <= len(text)
    if not is_unclosed and not has_begun and THINK.end not in text:
        assert answer == text


def test_a_long_answer_of_marks_takes_no_time() -> None:
    started = time.process_time()
    assert remove_thoughts("<think></think>" * 300_000, THINK) == ("", False)
    assert time.process_time() - started < 3


def test_channels_are_thoughts() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Yes.<|return|>"
    )
    found = finish(Completion(text, 9, "stop"), [], HARMONY, special_tokens=["<|return|>"])
    assert (found, found.is_unfinished, found.tokens) == ("Yes.", False, 9)


def test_stop_strings_count_after_the_thoughts() -> None:
    text = "<think>one\n\ntwo</think>\n\nthree\n\nfour"
    assert finish(Completion(text, 9, "stop"), ["\n\n"], THINK) == "three"
    keep = THINK.model_copy(update={"keep": True})
    assert finish(Completion(text, 9, "stop"), ["\n\n"], keep) == text
    # The server has cut the others already.
    assert finish(Completion("one\n\ntwo", 9, "stop"), ["\n\n"], None) == "one\n\ntwo"


@given(st.text(alphabet="ab\n", max_size=20), st.lists(st.sampled_from(["a", "ab", "\n"])))
def test_nothing_from_a_stop_on_is_left(text: str, stops: list[str]) -> None:
    cut = cut_at(text, stops)
    assert text.startswith(cut)
    assert not any(stop in cut for stop in stops)


@pytest.mark.parametrize(
    ("reason", "text", "truncated", "unclosed"),
    [
        ("stop", "<think>a</think>b", False, False),
        ("length", "<think>a</think>b", True, False),
        ("length", "<think>a", True, True),
        ("stop", "<think>a", False, True),
    ],
)
def test_unfinished_answers_are_told(
    reason: str, text: str, truncated: bool, unclosed: bool
) -> None:
    found = finish(Completion(text, 5, reason), [], THINK)
    assert (found.is_truncated, found.is_unclosed) == (truncated, unclosed)
    assert found.is_unfinished == (truncated or unclosed)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thoughts_that_the_server_separated(key: str) -> None:
    message = {"content": "4", key: "2 + 2"}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], **USAGE}
    found = finish(read_chat(body), [], THINK)
    assert (found, found.is_unclosed, found.tokens) == ("4", False, 3)
    keep = THINK.model_copy(update={"keep": True})
    assert finish(read_chat(body), [], keep) == "<think>2 + 2</think>4"


def test_thoughts_alone_are_unclosed() -> None:
    message = {"content": None, "reasoning": "2 + 2 is"}
    body = {"choices": [{"message": message, "finish_reason": "length"}], **USAGE}
    assert finish(read_chat(body), [], THINK).is_unclosed


def test_tool_calls_are_kept_as_written() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
    message = {"content": None, "tool_calls": [call]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], **USAGE}
    found = finish(read_chat(body), [], None)
    assert found == ""
    assert found.tool_calls == (ToolCall("add", '{"a": 1'),)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "text",
                    "content",
                    "usage",
                    "completion_tokens",
                    "tool_calls",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(json_values)
def test_any_json_is_read_or_refused(body: Any) -> None:
    for read in (read_chat, read_completion):
        try:
            found = read(body)
        except ValueError:
            continue
        assert found.tokens >= 0

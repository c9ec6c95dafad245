"""Choices by the most likely first tokens: what is missing is bounded, never guessed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.chance_baselines import UNDECIDABLE
from eval_gates.suites.answer_rows import choice_fields
from eval_gates.suites.chat_form import (
    ChatForm,
    LogProbBound,
    count_against,
    is_undecidable,
    needs_extensions,
    read_choices,
)
from eval_gates.suites.chat_model import ChatPrompt, chat_of, generation_request
from eval_gates.suites.endpoint_client import RejectedRequest

LETTERS = [" A", " B", " C", " D"]
VOCABULARY = ["A", " A", "B", "\nB", "C", " C", "D", "The", " the", "", "**", "I", "E", "a"]
FORM = ChatForm(length_key="max_tokens", extended=True, top_logprobs=20)


def body(listed: list[tuple[str, float]], sampled: tuple[str, float]) -> dict[str, Any]:
    tops = [{"token": token, "logprob": value, "bytes": None} for token, value in listed]
    content = [{"token": sampled[0], "logprob": sampled[1], "top_logprobs": tops}]
    return {"choices": [{"message": {"content": "x"}, "logprobs": {"content": content}}]}


def values_of(body: dict[str, Any]) -> list[tuple[float, bool]]:
    found = read_choices(body, LETTERS)
    assert isinstance(found, list)
    return found


@given(
    st.lists(st.floats(-30, 0), min_size=len(VOCABULARY), max_size=len(VOCABULARY)),
    st.integers(1, len(VOCABULARY)),
    st.integers(0, len(VOCABULARY) - 1),
)
def test_what_is_listed_agrees_with_the_whole_distribution(
    weights: list[float], listed: int, drawn: int
) -> None:
    """Also where a server draws another token than the best, and lists it in addition."""
    total = math.log(sum(math.exp(weight) for weight in weights))
    full = [(token, w - total) for token, w in zip(VOCABULARY, weights, strict=True)]
    order = sorted(full, key=lambda each: -each[1])
    top = order[:listed]
    shown = top if order[drawn] in top else [*top, order[drawn]]
    true = [max(value for token, value in full if token.strip() == c.strip()) for c in LETTERS]
    found = values_of(body(shown, order[drawn]))
    for (value, is_greedy), exact in zip(found, true, strict=True):
        if isinstance(value, LogProbBound):
            assert exact <= value
            assert not is_greedy or exact == order[0][1]
        else:
            assert value == exact
            assert is_greedy == (exact >= order[0][1])
    values = [value for value, _ in found]
    if not is_undecidable(values, "acc"):
        assert values[values.index(max(values))] == max(true)
        assert true[values.index(max(values))] == max(true)


def test_a_choice_in_several_spellings_has_its_largest_value() -> None:
    listed = [(" B", -0.5), ("A", -1.5), ("\nA", -2.0), (" A", -3.0)]
    values = [value for value, _ in values_of(body(listed, listed[0]))]
    assert values == [-1.5, -0.5, -3.0, -3.0]
    assert [isinstance(value, LogProbBound) for value in values] == [False, False, True, True]


@pytest.mark.parametrize(
    ("listed", "undecidable"),
    [
        ([("The", -0.1), ("A", -3.0), ("I", -4.0)], False),
        ([("The", -0.1), ("I", -4.0), ("A", -4.0)], True),  # another letter may be as likely
        ([("The", -0.1), ("I", -4.0)], True),
        ([("The", -0.1), ("A", -2.0), ("B", -2.1), ("C", -2.2), ("D", -9.0)], False),
    ],
)
def test_a_question_is_decided_by_a_listed_choice_above_the_bound(
    listed: list[tuple[str, float]], undecidable: bool
) -> None:
    sample = {"filtered_resps": values_of(body(listed, listed[0]))}
    fields = choice_fields(sample, "acc")
    assert fields.get(UNDECIDABLE, False) == undecidable
    missing = [n for n, c in enumerate("ABCD") if c not in {token for token, _ in listed}]
    assert fields.get("unlisted", []) == missing
    json.dumps(fields, allow_nan=False)


def test_other_metrics_than_the_best_choice_need_every_value() -> None:
    values = [-1.0, LogProbBound(-5.0)]
    assert not is_undecidable(values, "acc")
    assert is_undecidable(values, "acc_norm")
    assert not is_undecidable([-1.0, -2.0], "acc_norm")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{"logprobs": None}]},
        {"choices": [{"logprobs": {"content": []}}]},
        body([], ("A", -1.0)),
        body([("A", math.nan)], ("A", -1.0)),
        body([("A", 2.0)], ("A", -1.0)),
        body([("A", -1.0)], ("A", math.nan)),
        {"choices": [{"logprobs": {"content": [{"token": "A", "logprob": "x"}]}}]},
    ],
)
def test_an_answer_without_log_probabilities_is_rejected(answer: dict[str, Any]) -> None:
    assert isinstance(read_choices(answer, LETTERS), RejectedRequest)


def test_undecidable_questions_never_help_the_candidate() -> None:
    rows = [{"id": "1", "score": 0.5, UNDECIDABLE: True}, {"id": "2", "score": 0.5}]
    assert [row["score"] for row in count_against(rows, "baseline")] == [1.0, 0.5]
    assert [row["score"] for row in count_against(rows, "candidate")] == [0.0, 0.5]


# --- requests -------------------------------------------------------------------------------------


def asked(form: ChatForm, prompt: str = "Hello", **settings: Any) -> dict[str, Any]:
    given = {"until": ["\n\n"], "max_gen_toks": 5, "do_sample": False, "temperature": 0.0}
    arguments = {"enable_thinking": False}
    return generation_request(
        form, "m", prompt, {**given, **settings}, seed=7, template_arguments=arguments
    ).body


def test_a_prompt_is_one_message_unless_it_is_messages() -> None:
    messages = [{"role": "system", "content": "ß"}, {"role": "user", "content": "b"}]
    assert chat_of("a", {}) == {"messages": [{"role": "user", "content": "a"}]}
    assert chat_of(ChatPrompt(json.dumps(messages)), {}) == {"messages": messages}
    tools = {"messages": messages, "tools": [1]}
    assert chat_of("a", {"chat": tools}) == tools


def test_fields_that_an_endpoint_lacks_are_left_out() -> None:
    sampling = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "temperature": 0.5}
    assert asked(FORM, **sampling) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
        "seed": 7,
        "stop": ["\n\n"],
        "temperature": 0.5,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    plain = ChatForm(length_key="max_completion_tokens", extended=False)
    lacking = {"top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "max_tokens"}
    assert asked(plain, **sampling).keys() == {
        *(asked(FORM).keys() - lacking),
        "max_completion_tokens",
    }
    assert needs_extensions({**sampling, "top_k": 20, "min_p": 0.1}) == ["top_k", "min_p"]
    assert needs_extensions(sampling) == []


def test_an_answer_of_the_models_length_has_no_limit() -> None:
    assert "max_tokens" not in asked(FORM, max_gen_toks="model")


def test_stop_strings_do_not_end_thoughts() -> None:
    markers = {"start": "<think>", "end": "</think>", "keep": False}
    request = generation_request(
        FORM,
        "m",
        "Hello",
        {"until": ["\n\n"], "max_gen_toks": 50, "thinking": markers},
        seed=1,
        template_arguments={},
    )
    assert "stop" not in request.body
    for message in (
        {"content": "<think>a\n\nb</think>\nyes\n\nno"},
        {"content": "yes\n\nno", "reasoning": "a\n\nb"},
        {"content": "yes\n\nno", "reasoning_content": "a\n\nb"},
    ):
        choice = {"message": message, "finish_reason": "stop"}
        text = request.read({"choices": [choice], "usage": {"completion_tokens": 9}})
        assert (text, text.tokens, text.is_unclosed) == ("yes", 9, False)
    assert isinstance(request.read({"choices": [choice]}), RejectedRequest)


def test_the_request_for_a_choice_is_one_token_with_a_list() -> None:
    found = FORM.choice_body("m", [{"role": "user", "content": "?"}], 3, {})
    assert (found["max_tokens"], found["temperature"], found["seed"]) == (1, 0, 3)
    assert (found["logprobs"], found["top_logprobs"]) == (True, 20)


def test_an_integer_beyond_all_floats_is_a_rejection() -> None:
    huge = json.loads(json.dumps(body([("A", -0.1)], ("A", -0.1))).replace("-0.1", f"-{10**400}"))
    assert isinstance(read_choices(huge, LETTERS), RejectedRequest)

"""Multiple choice by one request: grouping, the request, its answer (sending: see tests/e2e)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError

from eval_gates.suites.completions_model import (
    GenerationRequest,
    OneTokenItem,
    check_fit,
    check_numbers,
    generation_request,
    one_token_items,
    payload,
    read_answer,
    read_generated,
    read_scored,
    render_chat,
    special_texts,
)
from eval_gates.suites.endpoint_client import RejectedRequest
from pipeline.core.errors import StageError

ITEM = OneTokenItem((5, 6, 7), ((0, 330), (1, 365), (2, 367), (3, 414)))


def answer(values: dict[int, float], greedy: int) -> dict[str, Any]:
    """A body as vLLM answers, with tokens as ids."""
    tops = {f"token_id:{token}": value for token, value in values.items()}
    logprobs = {
        "tokens": [f"token_id:{greedy}"],
        "token_logprobs": [values[greedy]],
        "top_logprobs": [tops],
    }
    return {"choices": [{"index": 0, "text": " A", "logprobs": logprobs}]}


# --- which requests go together -------------------------------------------------------------------


def test_choices_after_one_context_are_one_item() -> None:
    requests = [(("q", " A"), [1, 2], [10]), (("q", " B"), [1, 2], [11])]
    assert one_token_items(requests) == [OneTokenItem((1, 2), ((0, 10), (1, 11)))]


def test_one_longer_choice_keeps_all_of_its_item_out() -> None:
    """A question's choices are compared with each other, so they are asked the same way."""
    requests = [
        (None, [1, 2], [10]),
        (None, [3], [10]),
        (None, [1, 2], [11, 12]),
        (None, [3], [11]),
    ]
    assert one_token_items(requests) == [OneTokenItem((3,), ((1, 10), (3, 11)))]


def test_a_choice_that_has_no_token_of_its_own_is_left_to_lm_eval() -> None:
    assert one_token_items([(None, [1], [10]), (None, [1], [])]) == []


def test_contexts_that_begin_alike_are_neighbours() -> None:
    shots, others = list(range(50)), list(range(1, 51))
    contexts = [[*shots, 3], [*others, 2], [*shots, 1], [*others, 1], [*shots, 2]]
    found = one_token_items([(None, context, [9]) for context in contexts])
    assert [list(item.context) for item in found] == sorted(contexts)
    assert [item.context[0] for item in found] == [0, 0, 0, 1, 1]


@given(
    st.lists(
        st.tuples(
            st.none(),
            st.lists(st.integers(0, 3), min_size=1, max_size=3),
            st.lists(st.integers(0, 9), min_size=1, max_size=2),
        ),
        max_size=30,
    )
)
def test_no_request_is_lost_or_asked_twice(requests: list[Any]) -> None:
    items = one_token_items(requests)
    placed = {number: (item.context, token) for item in items for number, token in item.places}
    assert sum(len(item.places) for item in items) == len(placed)
    for number, (_, context, continuation) in enumerate(requests):
        alone = all(len(other[2]) == 1 for other in requests if other[1] == context)
        assert placed.get(number) == ((tuple(context), continuation[0]) if alone else None)


# --- the request ----------------------------------------------------------------------------------


def test_the_request_asks_for_the_choices_tokens() -> None:
    asked = payload("m", ITEM, 1234)
    assert asked["prompt"] == [5, 6, 7]
    assert asked["max_tokens"] == 1
    assert asked["logprob_token_ids"] == [330, 365, 367, 414]
    assert asked["logprobs"] == 4
    assert asked["return_tokens_as_token_ids"] is True
    assert "echo" not in asked


def test_the_models_own_sampling_settings_do_not_matter() -> None:
    """vLLM would take them from generation_config.json, and a penalty moves the greedy choice."""
    asked = payload("m", ITEM, 1234)
    assert asked["temperature"] == 0
    assert asked["repetition_penalty"] == 1.0
    assert asked["presence_penalty"] == asked["frequency_penalty"] == 0.0


def test_equal_choices_are_asked_for_once() -> None:
    item = OneTokenItem((5,), ((0, 330), (1, 365), (2, 330)))
    assert payload("m", item, 1)["logprob_token_ids"] == [330, 365]
    found = read_answer(answer({330: -1.0, 365: -2.0}, greedy=330), item)
    assert found == {0: (-1.0, True), 1: (-2.0, False), 2: (-1.0, True)}


# --- the answer -----------------------------------------------------------------------------------


def test_log_probabilities_are_found_by_token() -> None:
    body = answer({28: -0.5, 414: -4.0, 330: -1.0, 365: -2.0, 367: -3.0}, greedy=28)
    assert read_answer(body, ITEM) == {
        0: (-1.0, False),
        1: (-2.0, False),
        2: (-3.0, False),
        3: (-4.0, False),
    }


def test_a_choice_is_greedy_when_nothing_is_more_probable() -> None:
    body = answer({330: -1.0, 365: -0.25, 367: -3.0, 414: -0.25}, greedy=365)
    found = read_answer(body, ITEM)
    assert isinstance(found, dict)
    # As lm-eval has it: the same probability as the best is the best.
    assert [greedy for _, greedy in found.values()] == [False, True, False, True]


def without(token: int) -> dict[str, Any]:
    body = answer({330: -1.0, 365: -2.0, 367: -3.0, 414: -4.0}, greedy=330)
    del body["choices"][0]["logprobs"]["top_logprobs"][0][f"token_id:{token}"]
    return body


@pytest.mark.parametrize(
    "body",
    [
        without(414),  # a server that gives its own most probable ones
        without(330),
        {"choices": [{"text": " A", "logprobs": None}]},  # one that ignores `logprobs`
        {"choices": []},
        {"choices": [{"logprobs": {"token_logprobs": [-1.0], "top_logprobs": [None]}}]},
        {"choices": [{"logprobs": {"token_logprobs": [None], "top_logprobs": [{" A": -1.0}]}}]},
        {"object": "error", "message": "no"},
        [],
        None,
        "text",
    ],
)
def test_an_answer_without_a_choice_is_a_refusal(body: Any) -> None:
    found = read_answer(body, ITEM)
    assert isinstance(found, RejectedRequest)
    assert "log-probabilities of the tokens" in found.reason


# --- scored prompts -------------------------------------------------------------------------------


def scored(values: list[float | None], tops: list[Any], **more: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": values, "top_logprobs": tops}
    return {"choices": [{"index": 0, "text": "", "logprobs": logprobs, **more}]}


@pytest.mark.parametrize("generated", [0, 1])
def test_what_follows_the_context_is_summed(generated: int) -> None:
    """Whether the endpoint adds the token that it generated or does not."""
    values, tops = [None, -1.0, -2.0, -3.0], [None, {"a": -1.0}, {"b": -2.0}, {"c": -0.5}]
    body = scored([*values, *[-9.0] * generated], [*tops, *[{"d": -9.0}] * generated])
    assert read_scored(body, [[7, 7, 7, 7]], [2]) == [(-5.0, False)]
    assert read_scored(body, [[7, 7, 7, 7]], [3]) == [(-3.0, False)]
    assert read_scored(scored([None, -1.0], [None, {"a": -1.0}]), [[7, 7]], [1]) == [(-1.0, True)]


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"index": 0, "text": " A", "logprobs": None}]},
        scored([None, -1.0], [None, None]),
        scored([None, None], [None, {"a": -1.0}]),
        scored([None, -1.0], [None, {}]),
        scored([-1.0], [{"a": -1.0}]),  # of the answer alone: `echo` was ignored
        scored([None, -1.0, -1.0, -1.0], [None, *[{"a": -1.0}] * 3]),  # of tokens it added
        {"choices": []},
        {"object": "error"},
        None,
    ],
)
def test_scored_prompts_without_their_log_probabilities_are_a_refusal(body: Any) -> None:
    assert isinstance(read_scored(body, [[7, 7]], [1]), RejectedRequest)


# --- generated texts ------------------------------------------------------------------------------


THINK = {"start": "<think>", "end": "</think>"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "tools": []}


def text_request(
    settings: dict[str, Any], *, prompt: str = "Hi", special: tuple[str, ...] = ()
) -> GenerationRequest:
    return generation_request(
        "m",
        prompt,
        [1, 2, 3],
        settings,
        limit=100,
        seed=7,
        template_arguments={"enable_thinking": False},
        special_tokens=list(special),
    )


def test_a_greedy_request_leaves_nothing_to_the_models_own_settings() -> None:
    asked = text_request({"until": ["\n"], "max_gen_toks": 5, "do_sample": False})
    assert asked.path == "completions"
    assert asked.body == {
        **{"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "seed": 7, "stop": ["\n"]},
        **{"temperature": 0, "top_p": 1.0, "repetition_penalty": 1.0},
        **{"presence_penalty": 0.0, "frequency_penalty": 0.0},
    }
    assert asked.length == 8


def test_a_drawn_request_has_its_own_seed_and_sampling() -> None:
    asked = text_request({"max_gen_toks": 5, "seed": 9, "temperature": 0.6, "top_k": 20})
    assert (asked.body["seed"], asked.body["temperature"], asked.body["top_k"]) == (9, 0.6, 20)


def test_the_cap_of_the_model_is_what_the_prompt_leaves() -> None:
    assert text_request({"max_gen_toks": "model"}).body["max_tokens"] == 97
    assert text_request({"max_gen_toks": "model"}).length == 100
    # The server renders messages itself, perhaps with a token more.
    assert text_request({"max_gen_toks": "model", "chat": CHAT}).length < 100


def test_stop_strings_would_end_thoughts_so_they_are_not_sent() -> None:
    asked = text_request({"until": ["\n\n"], "max_gen_toks": 5, "thinking": THINK})
    assert "stop" not in asked.body
    assert "skip_special_tokens" not in asked.body
    body = {"choices": [{"text": "<think>\n\n</think>\n\nYes.\n\nNo."}]}
    answer = read_generated({**body, "usage": {"completion_tokens": 9}}, asked, [])
    assert (answer, getattr(answer, "tokens", None)) == ("Yes.", 9)


@pytest.mark.parametrize(("prompt", "begun"), [("Q<think>\n", True), ("Q<think></think>", False)])
def test_a_prompt_may_begin_the_thought(prompt: str, begun: bool) -> None:
    assert text_request({"max_gen_toks": 5, "thinking": THINK}, prompt=prompt).has_begun is begun
    assert not text_request({"max_gen_toks": 5}, prompt=prompt).has_begun


def test_markers_that_are_special_tokens_are_asked_for() -> None:
    settings = {"max_gen_toks": 5, "thinking": {"start": "[THINK]", "end": "[/THINK]"}}
    special = ("[THINK]", "[/THINK]", "</s>")
    asked = text_request(settings, special=special)
    assert asked.body["skip_special_tokens"] is False
    body = {"choices": [{"text": "[THINK]a[/THINK] b</s>"}], "usage": {"completion_tokens": 9}}
    assert read_generated(body, asked, list(special)) == "b"


class AddedToken(str):
    """As the one of `tokenizers`, whose text is its `str`."""

    special: bool

    def __new__(cls, text: str, special: bool) -> AddedToken:
        made = super().__new__(cls, text)
        made.special = special
        return made


def test_markers_without_a_role_in_the_tokenizer_are_special_tokens_too() -> None:
    added = {5: AddedToken("<|channel|>", True), 6: AddedToken("<think>", False)}
    tokenizer = SimpleNamespace(all_special_tokens=["</s>"], added_tokens_decoder=added)
    assert special_texts(tokenizer) == ["</s>", "<|channel|>"]
    assert special_texts(SimpleNamespace(all_special_tokens=["</s>"])) == ["</s>"]


def test_messages_go_to_the_chat_endpoint_with_the_templates_arguments() -> None:
    asked = text_request({"max_gen_toks": 5, "chat": CHAT})
    assert asked.path == "chat/completions"
    assert "prompt" not in asked.body
    assert asked.body["messages"] == CHAT["messages"]
    assert asked.body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "body",
    [
        {"choices": []},
        {"choices": [{"index": 0}]},
        {"choices": [{"text": None}], "usage": {"completion_tokens": 1}},
        {"choices": [{"text": "without a count"}]},
        {"choices": [{"text": "x"}], "usage": {"completion_tokens": -1}},
        {},
        None,
        "text",
    ],
)
def test_an_answer_without_a_text_is_a_refusal(body: Any) -> None:
    asked = text_request({"max_gen_toks": 5})
    assert isinstance(read_generated(body, asked, []), RejectedRequest)


# --- prompts that do not fit ----------------------------------------------------------------------


def test_prompts_that_fit() -> None:
    check_fit([], 5)
    check_fit([1, 5, 5], 5)


def test_prompts_that_do_not_fit_are_counted() -> None:
    with pytest.raises(StageError) as caught:
        check_fit([5, 6, 9, 1], 5)
    assert "2 of 4 questions" in caught.value.message
    assert "longest has 9 tokens, and 5 fit" in caught.value.message
    assert "max-model-len" in caught.value.hint


def test_log_probabilities() -> None:
    check_numbers([-1.5, 0.0, 1e-6, float("-inf")])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
def test_what_is_no_log_probability(value: float) -> None:
    with pytest.raises(StageError, match=f"{value:g}"):
        check_numbers([-1.0, value])


def test_a_template_that_refuses_a_role_is_an_error() -> None:
    """Some templates know no system role, which lists the functions of tool calls."""

    class Tokenizer:
        def apply_chat_template(self, messages: list[Any], **settings: Any) -> str:
            if messages[0]["role"] == "system":
                raise TemplateError("System role not supported")
            return f"{messages[0]['content']} {settings['tokenize']} {settings['tools']}"

    user = {"role": "user", "content": "Hi"}
    assert render_chat(Tokenizer(), [user], tools=[]) == "Hi False []"
    with pytest.raises(StageError, match="system, user: System role not supported"):
        render_chat(Tokenizer(), [{**user, "role": "system"}, user])

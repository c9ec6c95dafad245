"""Settings of generated answers, and lm-eval's configuration of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from eval_gates.suites.generated_text import GeneratedText
from eval_gates.suites.generation import is_unsolved, request_settings, score_answers, task_config
from eval_gates.suites.rouge import RougeTask
from recipes.generation import ThoughtMarkers

MARGINS = {"fp8": 0.1}


def task(**changes: Any) -> RougeTask:
    return RougeTask.model_validate({"prompt_format": "chat", **changes})


def test_greedy_settings() -> None:
    config = task_config(task(max_tokens=48), "{{request}}", ["\n\n"])
    assert config["doc_to_text"] == "{{request}}"
    assert config["generation_kwargs"] == {
        "until": ["\n\n"],
        "max_gen_toks": 48,
        "do_sample": False,
        "temperature": 0.0,
    }


def test_drawn_settings_leave_nothing_to_the_server() -> None:
    settings = request_settings(task(max_tokens="model", sampling={"temperature": 0.6}), [])
    assert settings == {
        "until": [],
        "max_gen_toks": "model",
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
    }


def test_tasks_do_not_share_their_stops() -> None:
    stops = ["\n"]
    request_settings(task(), stops)["until"].append("changed")
    assert stops == ["\n"]


def test_the_models_markers_are_told_to_the_client() -> None:
    markers = {"start": "<think>", "end": "</think>"}
    assert request_settings(task(thinking=markers), [])["thinking"] == {**markers, "keep": False}


@pytest.mark.parametrize(
    "unresolved",
    [{"sampling": "model"}, {"thinking": "remove"}, {"thinking": "keep"}, {"max_tokens": 0}],
)
def test_what_planning_did_not_resolve_is_not_asked(unresolved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"resolved|max_tokens"):
        request_settings(task(**unresolved), [])


def test_greedy_samples_are_one_answer() -> None:
    with pytest.raises(ValidationError, match="'sampling: model'"):
        task(samples=2)
    assert task(samples=2, sampling={"temperature": 0.6}).samples == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", "all"),
        ("samples", 0),
        ("sampling", "random"),
        ("sampling", {"temperature": 0}),
        ("sampling", {"top_p": 1.5}),
        ("chat_template_kwargs", {"a": [1]}),
        ("thinking", "on"),
        ("thinking", {"start": "<think>"}),
        ("thinking", {"start": "", "end": "x"}),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        task(**{key: value})
    assert caught.value.errors()[0]["loc"][0] == key


def test_a_thinking_models_unfinished_answer_is_unsolved() -> None:
    thinking = task(thinking=ThoughtMarkers(start="a", end="b"))
    texts = [
        GeneratedText("x"),
        GeneratedText("x", is_truncated=True),
        GeneratedText("x", is_unclosed=True),
    ]
    assert [is_unsolved(thinking, text) for text in texts] == [False, True, True]
    assert score_answers(thinking, texts, lambda _: 1.0) == [1.0, 0.0, 0.0]
    assert score_answers(task(), texts, lambda _: 1.0) == [1.0, 1.0, 1.0]

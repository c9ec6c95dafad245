"""Whether models think, by templates of the ways that models have."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from prepare.errors import CheckpointError
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.checkpoints.template_renderer import render
from recipes.checkpoints.thinking import argument_names, find_switch, thinks

ASKED = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
# Thoughts of earlier turns are left out, which many templates do.
STRIPPED = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
EMPTY_IF_OFF = (
    f"{STRIPPED}A:{{% if enable_thinking is defined and enable_thinking is false %}}"
    "<think>\n\n</think>\n\n{% endif %}"
)
OPEN_UNLESS_OFF = (
    f"{ASKED}{{% set thinking = thinking if thinking is defined else true %}}"
    "{{ '<think>\n' if thinking else '<think></think>' }}"
)
CLOSED_UNLESS_ON = (
    f"{ASKED}{{% if not thinking is defined %}}{{% set thinking = false %}}{{% endif %}}"
    "{% if thinking %}<think>{% else %}</think>{% endif %}"
)
ASKED_FOR = "{% if thinking %}Write your thoughts in <think> and </think> first.{% endif %}" + ASKED
CHANNELS = (
    f"{ASKED}Effort: {{{{ reasoning_effort }}}} <|channel|>analysis<|message|> "
    "<|channel|>final<|message|>{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def model(template: str) -> ModelGeneration:
    return ModelGeneration("here", template, {"eos_token": "</s>"})


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        (ASKED, {}, False),
        (ASKED + "<think>\n", {}, True),
        (ASKED + "<think>\n\n</think>\n\n", {}, False),
        (STRIPPED, {}, True),  # no switch, and it knows thoughts
        (EMPTY_IF_OFF, {}, True),
        (EMPTY_IF_OFF, {"enable_thinking": True}, True),
        (EMPTY_IF_OFF, {"enable_thinking": False}, False),
        (OPEN_UNLESS_OFF, {}, True),
        (OPEN_UNLESS_OFF, {"thinking": False}, False),
        (CLOSED_UNLESS_ON, {}, False),
        (CLOSED_UNLESS_ON, {"thinking": True}, True),
        (ASKED_FOR, {}, False),
        (ASKED_FOR, {"thinking": True}, True),
        (CHANNELS, {}, True),
        (CHANNELS, {"reasoning_effort": "low"}, True),
    ],
)
def test_by_its_template(template: str, arguments: dict[str, Any], expected: bool) -> None:
    assert thinks(model(template), arguments) is expected


def test_the_arguments_that_it_reads() -> None:
    assert argument_names(model(OPEN_UNLESS_OFF)) == {"thinking"}
    assert argument_names(model(CHANNELS)) == {"reasoning_effort"}
    assert [find_switch(model(t)) for t in (EMPTY_IF_OFF, CHANNELS)] == ["enable_thinking", None]


def test_functions_and_blocks_of_transformers() -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}"
        "{% endfor %}{{ strftime_now('%d') }}"
    )
    (prompt,) = render(model(template), [{}]).prompts
    assert prompt.startswith('{"role": "user"')


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ raise_exception('only for tools') }}",
        "{{ messages.__class__.__mro__ }}{{ messages.__class__.__subclasses__() }}",
        "{% include '/etc/passwd' %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}aaaaaaaaaaaaaaaa{% endfor %}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set x = namespace(v='a') %}{% for a in range(99) %}{% set x.v = x.v + x.v %}"
        "{% endfor %}",
    ],
)
def test_a_hostile_one_is_an_error_within_seconds(template: str) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        thinks(model(template + "</think>"), {})
    assert "here" in caught.value.where
    assert time.monotonic() - began < 25


def test_it_is_rendered_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def escape(template: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
        return {"names": [], "prompts": [os.environ.get("HF_TOKEN", "none")]}

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("recipes.checkpoints.template_renderer._render_all", escape)
    assert render(model("one that leaves jinja2's sandbox"), [{}]).prompts == ("none",)
    assert os.environ["HF_TOKEN"] == "hf_secret"

"""Settings of generated answers that the model decides, and what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pipeline.plan.generation_settings import resolve_generation
from pipeline.preflight.generation_faults import form_notes, generation_faults, tool_notes
from prepare.errors import CheckpointError
from recipes.catalog import load_policy, load_profile, policy_names
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.policy import Policy

MARGINS = {"fp8": 0.05}
BASE = ModelGeneration("x")
TEMPLATE = ModelGeneration("x", "{% for m in messages %}{{ m.content }}{% endfor %}")
THINKS = ModelGeneration(
    "x",
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
    sampling={"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
)


def policy(**forms: str) -> Policy:
    suites: dict[str, Any] = {
        name: {"kind": "humaneval", "margins": MARGINS, "prompt_format": form}
        for name, form in forms.items()
    }
    suites["facts"] = {"kind": "mmlu", "margins": MARGINS}
    return Policy.model_validate({"name": "p", "summary": "s", "suites": suites})


@pytest.mark.parametrize(("has_template", "auto"), [(True, "chat"), (False, "completion")])
def test_auto_is_settled_and_the_rest_stays(has_template: bool, auto: str) -> None:
    settled = resolve_generation(
        policy(a="auto", b="completion", c="chat"), TEMPLATE if has_template else BASE
    )
    forms = {name: suite.prompt_format for name, suite in settled.suites.items()}
    assert forms == {"a": auto, "b": "completion", "c": "chat", "facts": "letter"}


def test_another_form_than_usual_is_said() -> None:
    (note,) = form_notes(policy(a="auto", b="completion"), BASE)
    assert "a asked in the completion format" in note
    assert list(form_notes(policy(a="auto"), TEMPLATE)) == []


@pytest.mark.parametrize(("kind", "is_told"), [("calls", True), ("declines", False)])
def test_a_gate_of_calls_needs_a_parser_to_be_served(kind: str, is_told: bool) -> None:
    suite = {"kind": "decisions", "margins": MARGINS, "kinds": {kind: {"margins": MARGINS}}}
    asked = Policy.model_validate({"name": "p", "summary": "s", "suites": {"logs": suite}})
    profile = load_profile("cpu")
    assert [note.startswith("logs: ") for note in tool_notes(asked, profile)] == [True] * is_told
    arguments = {**profile.engine_arguments, "enable-auto-tool-choice": True}
    served = profile.model_copy(update={"engine_arguments": arguments})
    assert list(tool_notes(asked, served)) == []


def test_templates_without_a_default_one_are_refused_where_chats_are_asked() -> None:
    """Text to continue would be another benchmark, and transformers refuses the chats."""
    model = ModelGeneration("x", None, named_templates={"tool_use": "{{ tools }}"})
    (fault,) = generation_faults(policy(a="auto", b="completion"), model)
    assert isinstance(fault, CheckpointError)
    assert "tool_use" in fault.message
    assert generation_faults(policy(b="completion"), model) == []


@pytest.mark.parametrize("name", [name for name in policy_names() if name != "reasoning"])
def test_the_carried_policies_take_a_base_model(name: str) -> None:
    assert generation_faults(load_policy(name), BASE) == []


def written(model: ModelGeneration = THINKS, length: int | None = None, **generation: Any) -> Any:
    suites = {
        "code": {"kind": "humaneval", "margins": MARGINS},
        "facts": {"kind": "mmlu", "margins": MARGINS},
        "texts": {"kind": "rouge", "margins": MARGINS, "max_tokens": 99},
    }
    asked = Policy.model_validate(
        {"name": "p", "summary": "s", "generation": generation, "suites": suites}
    )
    faults = generation_faults(asked, model, length)
    return faults or resolve_generation(asked, model).suites


def test_a_model_that_thinks_is_refused_with_the_lines_to_write() -> None:
    (fault,) = written()
    assert "code, texts" in fault.message
    assert "generation.thinking" in fault.where
    lines = [part for part in fault.hint.split("'") if part.startswith("generation:")]
    assert len(lines) == 2
    for line in lines:  # each of them is enough
        assert isinstance(written(**yaml.safe_load(line)["generation"]), dict)


@pytest.mark.parametrize(("said", "keep"), [("remove", False), ("keep", True)])
def test_the_models_marks_of_thoughts(said: str, keep: bool) -> None:
    markers = written(thinking=said)["code"].thinking
    assert (markers.start, markers.end, markers.keep) == ("<think>", "</think>", keep)


def test_marks_that_nobody_knows() -> None:
    first, _ = written(TEMPLATE, thinking="remove")
    assert first.where.startswith("policy key suites.code.thinking")
    own = {"start": "[a]", "end": "[b]"}
    assert written(TEMPLATE, thinking=own)["code"].thinking.start == "[a]"


def test_the_models_own_sampling() -> None:
    found = written(thinking="remove", sampling="model", samples=4)["code"].sampling
    assert found.model_dump() == {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        **{"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0},
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "nothing"),
        ({"do_sample": False, "temperature": 0.6}, "greedy"),
        ({"temperature": 0}, "greedy"),
        ({"temperature": "hot"}, "'temperature'"),
        ({"top_p": 7}, "'top_p'"),
        ({"temperature": 10**400}, "'temperature'"),
    ],
)
def test_a_model_without_sampling(said: dict[str, Any], why: str) -> None:
    model = ModelGeneration("x", TEMPLATE.template, sampling=said)
    first, _ = written(model, sampling="model")
    assert why in first.message
    assert first.where.startswith("policy key suites.code.sampling")


def test_an_argument_that_the_template_never_reads() -> None:
    first, *_ = written(thinking="remove", chat_template_kwargs={"enable_thinkin": False})
    assert "'enable_thinkin'" in first.message
    assert "suites.code.chat_template_kwargs.enable_thinkin" in first.where
    assert "did you mean 'enable_thinking'?" in first.hint
    (_, _) = written(thinking="remove", chat_template_kwargs={"messages": "x"})


def test_a_cap_beyond_the_models_length() -> None:
    first, *others = written(TEMPLATE, 512, max_tokens=512)
    assert others == []
    assert first.where == "policy key suites.code.max_tokens"
    assert "max_tokens: model" in first.hint
    assert isinstance(written(TEMPLATE, 512, max_tokens="model"), dict)


def test_a_template_that_cannot_be_rendered_is_told_once() -> None:
    broken = ModelGeneration("x", "{{ raise_exception('no') }}</think>")
    (fault,) = written(broken)
    assert isinstance(fault, CheckpointError)


def tools_policy(form: str) -> Policy:
    tools = {"kind": "tools", "margins": MARGINS, "prompt_format": "chat", "form": form}
    return Policy.model_validate({"name": "p", "summary": "s", "suites": {"calls": tools}})


TWO_LINES = "{% for m in messages %}\n{{ m.content }}{% endfor %}\n"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"
SKIPS_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
TOOLS_BREAK = "{% if tools %}{{ tools[0].name.upper() }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "form", "message", "line"),
    [
        (TWO_LINES + NO_SYSTEM, "prompt", "system, user", ", line 3 of"),
        (TWO_LINES + TOOLS_BREAK, "server", "tools", ", line 3 of"),
        (TWO_LINES + "{% if %}", "prompt", "TemplateSyntaxError", ", line 3 of"),
        (SKIPS_SYSTEM, "prompt", "leaves out the system message", ""),
        ("<extra>" + TWO_LINES, "prompt", "token 512", ""),
    ],
)
def test_a_template_that_cannot_render_a_suite(
    template: str, form: str, message: str, line: str
) -> None:
    model = ModelGeneration("x", template, added_tokens={"<extra>": 512, "</s>": 2})
    (fault,) = generation_faults(tools_policy(form), model, config={"vocab_size": 512})
    assert message in fault.message
    assert line in (fault.where or "")


@pytest.mark.parametrize("form", ["prompt", "server"])
def test_a_template_that_renders_every_part(form: str) -> None:
    model = ModelGeneration("x", TWO_LINES + "{{ tools }}", added_tokens={"<extra>": 512})
    assert generation_faults(tools_policy(form), model, config={"vocab_size": 513}) == []


PARSES = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
TOOLS = ModelGeneration("x", TWO_LINES + "{{ tools }}")
GUIDED = {"kind": "structured", "guided": True}
CHAT = {"kind": "humaneval", "prompt_format": "chat"}


@pytest.mark.parametrize(
    ("suite", "model", "lacks", "words"),
    [
        ({}, TOOLS, "", ""),
        ({"form": "prompt"}, TEMPLATE, "tool-call-parser", ""),
        ({"form": "prompt"}, BASE, "tool-call-parser", ""),
        (GUIDED, TEMPLATE, "tool-call-parser", ""),
        ({}, TEMPLATE, "", "shows none to the model"),
        ({}, BASE, "", "no chat template"),
        (CHAT, BASE, "", "no chat template"),
        (CHAT, TEMPLATE, "", ""),
        (GUIDED, BASE, "", "no chat template"),
        ({}, TOOLS, "tool-call-parser", "lacks tool-call-parser"),
        ({}, TOOLS, "enable-auto-tool-choice", "lacks enable-auto-tool-choice"),
    ],
)
def test_requests_that_model_or_server_cannot_answer(
    suite: dict[str, Any], model: ModelGeneration, lacks: str, words: str
) -> None:
    given = {} if "kind" in suite else {"kind": "tools", "form": "server"}
    suites = {"mine": {**given, "margins": MARGINS, **suite}}
    asked = Policy.model_validate({"name": "p", "summary": "s", "suites": suites})
    arguments = {key: value for key, value in PARSES.items() if key != lacks}
    profile = load_profile("cpu").model_copy(update={"engine_arguments": arguments})
    faults = generation_faults(asked, model, profile=profile)
    assert [words in fault.message for fault in faults] == [True] * bool(words)
    assert generation_faults(asked, TOOLS) == []  # the server is up, and is asked

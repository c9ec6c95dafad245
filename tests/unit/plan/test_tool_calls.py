"""Chat requests that a model or its server cannot answer, refused before anything is served."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.errors import PrepareError
from pipeline.plan.chat_api import chat_faults
from recipes.catalog import load_profile
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.policy import Policy

TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}"
BASE = ModelGeneration("folder")
CHAT = ModelGeneration("folder", TURNS)
TOOLS = ModelGeneration("folder", "{% if tools %}{{ tools | tojson }}{% endif %}" + TURNS)
PROFILE = load_profile("cpu")
PARSES = PROFILE.model_copy(
    update={"engine_arguments": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}}
)


def policy(**suite: Any) -> Policy:
    asked = {"margins": {"fp8": 0.1}, **suite}
    return Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": asked}})


SERVER = policy(kind="tools", form="server")


def fault(asked: Policy, model: ModelGeneration, *more: Any) -> PrepareError:
    (found,) = chat_faults(asked, model, *more)
    assert "suites.mine" in str(found.where)
    assert "'mine'" in found.message
    return found


def test_what_can_be_asked() -> None:
    for asked, model, more in (
        (SERVER, TOOLS, (PARSES,)),
        (SERVER, TOOLS, ()),  # the server is up, and is asked
        (policy(kind="tools"), CHAT, (PROFILE,)),
        (policy(kind="tools"), BASE, (PROFILE,)),
        (policy(kind="structured"), BASE, (PROFILE,)),
        (policy(kind="structured", guided=True), CHAT, (PROFILE,)),
        (policy(kind="humaneval"), BASE, (PROFILE,)),
    ):
        assert list(chat_faults(asked, model, *more)) == []


def test_a_template_without_tools_is_named() -> None:
    found = fault(SERVER, CHAT, PARSES)
    assert "folder" in str(found.where)
    assert "form: prompt" in str(found.hint)


@pytest.mark.parametrize("asked", [SERVER, policy(kind="structured", guided=True)])
def test_a_model_without_a_template_cannot_be_asked_by_chat(asked: Policy) -> None:
    assert "chat template" in fault(asked, BASE, PARSES).message


@pytest.mark.parametrize("absent", ["enable-auto-tool-choice", "tool-call-parser"])
def test_a_profile_without_the_parser_gets_the_lines_to_write(absent: str) -> None:
    arguments = {k: v for k, v in PARSES.engine_arguments.items() if k != absent}
    profile = PARSES.model_copy(update={"engine_arguments": arguments})
    found = fault(SERVER, TOOLS, profile)
    assert absent in found.message
    assert f"profile {PROFILE.name}" in str(found.where)
    assert "{enable-auto-tool-choice: true, tool-call-parser: NAME}" in str(found.hint)


@pytest.mark.parametrize(
    "suite", [{"kind": "tools", "form": "server"}, {"kind": "structured", "guided": True}]
)
def test_the_completion_format_has_no_chat(suite: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="chat"):
        policy(**suite, prompt_format="completion")

"""How suites are asked of a model with and without a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.errors import UsageError
from pipeline.plan.prompt_format import form_faults, form_notes, with_forms
from recipes.catalog import load_policy, policy_names
from recipes.policy import Policy

MARGINS = {"fp8": 0.05}


def policy(**forms: str) -> Policy:
    suites: dict[str, Any] = {
        name: {"kind": "humaneval", "margins": MARGINS, "prompt_format": form}
        for name, form in forms.items()
    }
    suites["facts"] = {"kind": "mmlu", "margins": MARGINS}
    return Policy.model_validate({"name": "p", "summary": "s", "suites": suites})


@pytest.mark.parametrize(("has_template", "auto"), [(True, "chat"), (False, "completion")])
def test_auto_is_settled_and_the_rest_stays(has_template: bool, auto: str) -> None:
    settled = with_forms(policy(a="auto", b="completion", c="chat"), has_template=has_template)
    forms = {name: suite.prompt_format for name, suite in settled.suites.items()}
    assert forms == {"a": auto, "b": "completion", "c": "chat", "facts": "letter"}


def test_a_task_of_lm_eval_is_asked_as_the_model_is_used() -> None:
    """Without a word of the policy, too: GSM8K as completion shows little of a chat model."""
    suite = {"kind": "lm_eval", "task": "gsm8k", "margins": MARGINS}
    asked = Policy.model_validate({"name": "p", "summary": "s", "suites": {"sums": suite}})
    for has_template, form in ((True, "chat"), (False, "completion")):
        assert with_forms(asked, has_template=has_template).suites["sums"].prompt_format == form
    (note,) = form_notes(asked, has_template=False)
    assert "sums" in note


def test_who_insists_on_chat_is_refused_without_a_template() -> None:
    asked = policy(a="auto", b="completion", c="chat", d="chat")
    assert form_faults(asked, "x", has_template=True) == []
    faults = form_faults(asked, "x", has_template=False)
    assert [fault.where for fault in faults] == [
        "policy key suites.c.prompt_format; x",
        "policy key suites.d.prompt_format; x",
    ]
    assert all(isinstance(fault, UsageError) for fault in faults)


def test_another_form_than_usual_is_said() -> None:
    (note,) = form_notes(policy(a="auto", b="completion"), has_template=False)
    assert "a asked in the completion format" in note
    assert list(form_notes(policy(a="auto"), has_template=True)) == []


@pytest.mark.parametrize("name", policy_names())
def test_the_carried_policies_take_a_base_model(name: str) -> None:
    assert form_faults(load_policy(name), "x", has_template=False) == []

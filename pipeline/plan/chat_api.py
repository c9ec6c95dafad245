"""Policies that an endpoint's chat API cannot be asked, refused before the first question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from eval_gates.chat_form import ChatForm, needs_extensions
from pipeline.core.errors import UsageError
from pipeline.inspection.chat_template import UNKNOWN_TEMPLATE, ModelGeneration
from recipes.generation import Generation, Sampling
from recipes.policy import Policy

Api = Literal["completions", "chat"]


def by_chat(model: ModelGeneration) -> ModelGeneration:
    """Return the model with a chat template: the endpoint has one, which may be unknown here."""
    return replace(model, template=model.template or UNKNOWN_TEMPLATE)


def chat_api_faults(policy: Policy) -> Iterator[UsageError]:
    """Yield errors of suites that are no messages."""
    for name, suite in policy.suites.items():
        if suite.prompt_format == "completion":
            yield UsageError(
                f"the suite '{name}' is text to continue, and the chat API takes messages",
                where=f"policy key suites.{name}.prompt_format",
                hint="write 'prompt_format: auto' there, or give endpoints with text completions "
                "and --tokenizer",
            )


def form_faults(policy: Policy, form: ChatForm) -> Iterator[UsageError]:
    """Yield errors of suites with settings that OpenAI's API lacks, if an endpoint has no more."""
    for name, suite in policy.suites.items():
        if form.extended or not isinstance(suite, Generation):
            continue
        sampling = suite.sampling.model_dump() if isinstance(suite.sampling, Sampling) else {}
        lacking = [f"sampling.{key}" for key in needs_extensions(sampling)]
        lacking += ["chat_template_kwargs"] if suite.chat_template_kwargs else []
        if lacking:
            yield UsageError(
                f"an endpoint's chat API rejects settings of the suite '{name}': "
                f"{', '.join(lacking)}",
                where=f"policy key suites.{name}.{lacking[0]}, or the same of 'generation'",
                hint="remove them, or give endpoints of servers that accept them, such as vLLM",
            )

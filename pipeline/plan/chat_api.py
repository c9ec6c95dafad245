"""Suites that a model or server cannot answer by chat."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eval_gates.suites.suite_kind import ChatNeed, kind_of
from pipeline.core.errors import PrepareError, UsageError
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.policy import Policy
from recipes.schema import ServingProfile

SWITCH, PARSER = "enable-auto-tool-choice", "tool-call-parser"


def chat_faults(
    policy: Policy,
    model: ModelGeneration,
    profile: ServingProfile | None = None,
) -> Iterator[PrepareError]:
    """Yield errors of suites that model or server cannot answer by chat.

    `profile` is None if the server is up.
    """
    for name, suite in policy.suites.items():
        need = kind_of(suite).chat_need(suite)
        if need is ChatNeed.NONE:
            continue
        place = f"policy key suites.{name}"
        if model.template is None:
            if suite.prompt_format != "chat":  # refused already
                yield UsageError(
                    f"the suite '{name}' is asked by the chat API, and the tokenizer has no chat "
                    "template",
                    where=f"{place}; {model.where}",
                    hint="give an instruction-tuned checkpoint, or remove 'form: server' or "
                    "'guided' there",
                )
        elif (
            need is ChatNeed.TOOLS
            and model.is_template_known
            and not re.search(r"\btools\b", model.template)
        ):
            yield UsageError(
                f"the suite '{name}' sends tools, and the chat template shows none to the model",
                where=f"{place}.form; {model.where}",
                hint="write 'form: prompt', which lists the functions in the system prompt, or "
                "give a checkpoint whose template has a block for tools",
            )
        elif need is ChatNeed.TOOLS and profile is not None:
            missing = [key for key in (SWITCH, PARSER) if not profile.engine_arguments.get(key)]
            if missing:
                yield UsageError(
                    f"the suite '{name}' needs the server's tool-call parser, and the profile "
                    f"lacks {' and '.join(missing)}",
                    where=f"{place}.form; profile {profile.name}, key engine_arguments",
                    hint=f"write into a profile: 'engine_arguments: {{{SWITCH}: true, "
                    f"{PARSER}: NAME}}'; vLLM's documentation names the model's parser",
                )

"""Renders the chat template once for every suite's form, before anything is served.

A suite asks a user's message; some send a system prompt, a list of tools or earlier answers, too. A
template that raises, or leaves such a part out, is refused with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eval_gates.suites.suite_kind import kind_of
from pipeline.core.errors import CheckpointError, PrepareError, UsageError
from pipeline.inspection.chat_template import ModelGeneration
from pipeline.inspection.model_shape import text_level
from pipeline.inspection.thinking import render
from recipes.policy import Policy


def template_faults(
    policy: Policy, model: ModelGeneration, config: Mapping[str, Any]
) -> Iterator[PrepareError]:
    """Yield errors of suites in the chat format whose prompts the template cannot render.

    Args:
        policy: with resolved formats of prompts.
        config: content of config.json, for the number of embeddings.
    """
    if not model.is_template_known:
        return
    size = text_level(dict(config)).get("vocab_size")
    vocabulary = size if isinstance(size, int) else None
    seen: set[str] = set()
    for name, suite in policy.suites.items():
        if suite.prompt_format != "chat":
            continue
        chat = kind_of(suite).example_chat(suite)
        arguments = {**getattr(suite, "chat_template_kwargs", {}), **chat}
        try:
            (prompt,) = render(model, [arguments]).prompts
        except CheckpointError as error:
            if error.message not in seen:
                seen.add(error.message)
                roles = ", ".join(dict.fromkeys(each["role"] for each in chat["messages"]))
                what = f"{roles} and tools" if "tools" in chat else roles
                yield CheckpointError(
                    f"{error.message} (the suite '{name}' sends: {what})",
                    where=error.where,
                    hint=error.hint,
                )
            continue
        yield from _part_faults(name, model, chat, prompt)
        yield from _token_faults(name, model, prompt, vocabulary)


def _part_faults(
    name: str, model: ModelGeneration, chat: Mapping[str, Any], prompt: str
) -> Iterator[PrepareError]:
    for message in chat["messages"]:
        if message["content"] not in prompt:
            yield UsageError(
                f"the chat template leaves out the {message['role']} message that the suite "
                f"'{name}' sends",
                where=f"policy key suites.{name}; {model.where}",
                hint="write 'prompt_format: completion' there, or give a checkpoint with another "
                "template",
            )


def _token_faults(
    name: str, model: ModelGeneration, prompt: str, vocabulary: int | None
) -> Iterator[PrepareError]:
    for text, number in model.added_tokens.items():
        if vocabulary is not None and number >= vocabulary and text in prompt:
            yield CheckpointError(
                f"the chat template writes {text!r}, which is token {number:,}, and the model has "
                f"{vocabulary:,} (the suite '{name}')",
                where=model.where,
                hint="the tokenizer belongs to another model: take the one of this checkpoint",
            )

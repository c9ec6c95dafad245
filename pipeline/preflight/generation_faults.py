"""What a suite asks that this model or server cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eval_gates.decisions.task import ABOUT_CALLS, gates_of
from eval_gates.suites.suite_kind import ChatNeed, kind_of
from pipeline.plan.generation_settings import form_of, model_sampling, resolve_generation
from prepare.errors import CheckpointError, PrepareError, UsageError, did_you_mean
from recipes.checkpoints.chat_template import TEMPLATE, ModelGeneration
from recipes.checkpoints.model_shape import text_level
from recipes.checkpoints.template_renderer import render
from recipes.checkpoints.thinking import argument_names, find_markers, find_switch, thinks
from recipes.generation import Generation, ThoughtMarkers
from recipes.policy import AnySuite, Policy
from recipes.schema import ServingProfile

SWITCH = "enable-auto-tool-choice"
PARSER = "tool-call-parser"


def generation_faults(
    policy: Policy,
    model: ModelGeneration,
    max_length: int | None = None,
    config: Mapping[str, Any] | None = None,
    profile: ServingProfile | None = None,
) -> list[PrepareError]:
    """Return errors of suites that this model or server cannot answer as asked.

    `max_length` is in tokens of prompt and answer. `profile` is None if the server is up.
    """
    faults = list(_default_faults(policy, model))
    unmentioned: list[str] = []
    for name, suite in policy.suites.items():
        is_chat = form_of(suite, model) == "chat"
        faults += _chat_faults(name, suite, model, profile, is_chat=is_chat)
        if not isinstance(suite, Generation):
            continue
        faults += _setting_faults(name, suite, model, max_length)
        if is_chat and model.is_template_known:
            try:
                faults += _argument_faults(name, suite, model)
                if suite.thinking is None and thinks(model, suite.chat_template_kwargs):
                    unmentioned.append(name)
            except CheckpointError:
                break  # of the template, which `_template_faults` reports
    if unmentioned:
        cures = ["'generation: {thinking: remove, max_tokens: model}' to score what follows them"]
        if (switch := find_switch(model)) is not None:
            off = f"{{chat_template_kwargs: {{{switch}: false}}}}"
            cures.append(f"'generation: {off}' to turn them off")
        faults.append(
            UsageError(
                "the model thinks before it answers, and the policy does not say what becomes of "
                f"its thoughts in: {', '.join(unmentioned)}",
                where="policy keys generation.thinking and generation.chat_template_kwargs; "
                f"{model.where}",
                hint=f"write one of these lines into the policy: {'; or '.join(cures)}",
            )
        )
    if model.is_template_known:
        faults += _template_faults(resolve_generation(policy, model), model, config or {})
    return faults


def tool_notes(policy: Policy, profile: ServingProfile) -> Iterator[str]:
    """Yield a note on gates of calls that a server of the promoted version would not take."""
    names = [
        name
        for name, suite in policy.suites.items()
        if any(kind in ABOUT_CALLS for kind, _ in gates_of(suite))
    ]
    if names and SWITCH not in profile.engine_arguments:
        yield (
            f"{', '.join(names)}: calls are read from texts, and a server by this profile refuses "
            f"requests with tools; set {SWITCH} and {PARSER} in the profile's engine_arguments to "
            "serve what is promoted to agents"
        )


def form_notes(policy: Policy, model: ModelGeneration) -> Iterator[str]:
    """Yield a note on suites that are asked in an unusual format."""
    names = [name for name, suite in policy.suites.items() if suite.prompt_format == "auto"]
    if names and not model.has_template:
        yield (
            f"the tokenizer has no chat template: {', '.join(names)} asked in the completion "
            "format, as text to continue"
        )


def _default_faults(policy: Policy, model: ModelGeneration) -> Iterator[PrepareError]:
    """Yield an error if a chat model's templates have no default one.

    Transformers refuses its chats then, and text to continue would be another benchmark.
    """
    if model.template is not None or not model.named_templates:
        return
    names = [
        name for name, suite in policy.suites.items() if suite.prompt_format in ("auto", "chat")
    ]
    if names:
        yield CheckpointError(
            f"the chat templates ({', '.join(sorted(model.named_templates))}) have no default "
            f"one, and chats are asked by: {', '.join(names)}",
            where=model.where,
            hint=f"save the default one as {TEMPLATE}: files of templates replace all of "
            "tokenizer_config.json; or write 'prompt_format: completion' in the policy, without "
            "'guided' and 'form: server'",
        )


def _chat_faults(
    name: str,
    suite: AnySuite,
    model: ModelGeneration,
    profile: ServingProfile | None,
    *,
    is_chat: bool,
) -> Iterator[PrepareError]:
    need = kind_of(suite).chat_need(suite)
    place = f"policy key suites.{name}"
    if model.template is None:
        if is_chat or need is not ChatNeed.NONE:
            yield UsageError(
                f"the suite '{name}' is asked as a chat, and the tokenizer has no chat template",
                where=f"{place}; {model.where}",
                hint="give an instruction-tuned checkpoint; or write 'prompt_format: auto' there, "
                "and remove 'form: server' or 'guided'",
            )
    elif need is ChatNeed.TOOLS:
        template = model.template_of(tools=True)
        if template and not re.search(r"\btools\b", template):
            yield UsageError(
                f"the suite '{name}' sends tools, and the chat template shows none to the model",
                where=f"{place}.form; {model.where}",
                hint="write 'form: prompt', which lists the functions in the system prompt, or "
                "give a checkpoint whose template has a block for tools",
            )
        arguments = profile.engine_arguments if profile else {SWITCH: True, PARSER: True}
        if missing := [key for key in (SWITCH, PARSER) if not arguments.get(key)]:
            yield UsageError(
                f"the suite '{name}' needs the server's tool-call parser, and the profile lacks "
                f"{' and '.join(missing)}",
                where=f"{place}.form; profile key engine_arguments",
                hint=f"write into a profile: 'engine_arguments: {{{SWITCH}: true, {PARSER}: NAME}}'"
                "; vLLM's documentation names the model's parser",
            )


def _setting_faults(
    name: str, suite: Generation, model: ModelGeneration, max_length: int | None
) -> Iterator[PrepareError]:
    place = f"policy key suites.{name}"
    thinking = suite.thinking
    has_markers = thinking is None or isinstance(thinking, ThoughtMarkers)
    if not has_markers and find_markers(model) is None:
        yield UsageError(
            f"the suite '{name}' has 'thinking: {thinking}', and the chat template shows no marks "
            "of thoughts",
            where=f"{place}.thinking; {model.where}",
            hint="write the marks, as 'thinking: {start: <think>, end: </think>}', or remove "
            "'thinking'",
        )
    if suite.sampling == "model" and isinstance(why := model_sampling(model), str):
        yield UsageError(
            f"the suite '{name}' takes the model's own sampling, and {why}",
            where=f"{place}.sampling; {model.where}",
            hint="write numbers, as 'sampling: {temperature: 0.6, top_p: 0.95}'",
        )
    cap = suite.max_tokens
    if isinstance(cap, int) and max_length is not None and cap >= max_length:
        yield UsageError(
            f"an answer of the suite '{name}' may have {cap:,} tokens, and prompt and answer "
            f"together have at most {max_length:,}",
            where=f"{place}.max_tokens",
            hint="write 'max_tokens: model', which is what the prompt leaves, or a smaller "
            "number; or serve more tokens (max-model-len), up to the model's context",
        )


def _argument_faults(
    name: str, suite: Generation, model: ModelGeneration
) -> Iterator[PrepareError]:
    known = argument_names(model) if suite.chat_template_kwargs else set()
    for argument in sorted(suite.chat_template_kwargs.keys() - known):
        meant = did_you_mean(argument, sorted(known))
        yield UsageError(
            f"the chat template never reads the argument '{argument}'",
            where=f"policy key suites.{name}.chat_template_kwargs.{argument}, or the same of "
            f"'generation'; {model.where}",
            hint=f"{meant}it reads: {', '.join(sorted(known)[:20]) or 'none'}",
        )


def _template_faults(
    policy: Policy, model: ModelGeneration, config: Mapping[str, Any]
) -> Iterator[PrepareError]:
    """Yield errors of suites whose prompts cannot be rendered."""
    size = text_level(dict(config)).get("vocab_size")
    seen: set[str] = set()
    for name, suite in policy.suites.items():
        if suite.prompt_format != "chat":
            continue
        chat = kind_of(suite).example_chat(suite)
        try:
            arguments = {**getattr(suite, "chat_template_kwargs", {}), **chat}
            (prompt,) = render(model, [arguments]).prompts
        except CheckpointError as error:
            if error.message not in seen:
                seen.add(error.message)
                roles = ", ".join(dict.fromkeys(turn["role"] for turn in chat["messages"]))
                what = f"{roles} and tools" if "tools" in chat else roles
                message = f"{error.message} (the suite '{name}' sends: {what})"
                yield CheckpointError(message, where=error.where, hint=error.hint)
            continue
        for message in chat["messages"]:
            if message["content"] not in prompt:
                yield UsageError(
                    f"the chat template leaves out the {message['role']} message that the suite "
                    f"'{name}' sends",
                    where=f"policy key suites.{name}; {model.where}",
                    hint="write 'prompt_format: completion' there, without 'guided' and "
                    "'form: server', or give a checkpoint with another template",
                )
        for text, number in model.added_tokens.items():
            if isinstance(size, int) and number >= size and text in prompt and text not in seen:
                seen.add(text)
                yield CheckpointError(
                    f"the chat template writes {text!r}, which is token {number:,}, and the model "
                    f"has {size:,} (the suite '{name}')",
                    where=model.where,
                    hint="take this checkpoint's tokenizer; or, if tokens were added, resize the "
                    "embeddings and save the model again",
                )

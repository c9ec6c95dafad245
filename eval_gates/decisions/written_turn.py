"""A turn as an arm writes it: what is sent, and what is read of the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from eval_gates.ask import PLAIN_SAMPLING, Request
from eval_gates.decisions.task import DecisionsTask
from eval_gates.replies import choice_of, read_completion, remove_thoughts
from eval_gates.reply_forms import clean
from eval_gates.rows import Reply
from eval_gates.suites.chat_logs import tokenized
from recipes.generation import THOUGHT_MARKERS

CHOICES = 5  # first tokens whose log-probabilities are read


class WrittenTurn(NamedTuple):
    """What an arm writes at a turn, and its first token."""

    reply: Reply
    first: str | None = None  # None where the server gives no log-probabilities
    choices: Mapping[str, float] = {}


def ask_for(model: str, prompt: Sequence[int], tokens: int) -> Request:
    """Return the request of a greedy answer, with its special tokens: some begin a call."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "skip_special_tokens": False,
        "logprobs": CHOICES,
        "return_tokens_as_token_ids": True,
        **PLAIN_SAMPLING,
    }
    return Request("completions", body, _read_written, len(prompt) + tokens)


def _read_written(body: Any) -> WrittenTurn:
    reply, _ = read_completion(body)
    scored = choice_of(body).get("logprobs") or {}
    try:
        first = str(scored["tokens"][0])
        top = scored["top_logprobs"][0]
        choices = {str(token): float(value) for token, value in top.items()}
    except (LookupError, TypeError, ValueError, AttributeError):
        return WrittenTurn(reply)  # an empty answer has no first token
    return WrittenTurn(reply, first, choices)


def lead_of(written: WrittenTurn, first: str | None) -> float | None:
    """Return by how many nats the reference's first token leads this arm's next one.

    It is negative where another one leads, and at least the distance to the last that is listed.
    """
    first = first or written.first
    others = [value for token, value in written.choices.items() if token != first]
    if first is None or not others:
        return None
    own = written.choices.get(first, min(written.choices.values()))
    margin = own - max(others)
    return round(margin, 4) if math.isfinite(margin) else None


def without_thoughts(reply: Reply) -> tuple[Reply, bool]:
    """Return the reply without thoughts, and whether it ends within one."""
    text = reply.text
    for markers in THOUGHT_MARKERS:
        if markers.start in text or markers.end in text:
            text, is_unclosed = remove_thoughts(text, markers, has_begun=markers.start not in text)
            if is_unclosed:
                return replace(reply, text=text, is_unclosed=True), True
    cleaned, _ = clean(text, takes_thoughts=False)
    return replace(reply, text=cleaned), reply.is_unclosed


def tokenized_as(model: str, task: DecisionsTask, chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request that tokenizes a conversation in the task's form."""
    if task.prompt_format == "chat":
        return tokenized(model, chat, "chat", task.chat_template_kwargs)
    return {"model": model, "prompt": as_text(chat)}


def as_text(chat: Mapping[str, Any]) -> str:
    """Return a conversation with tools as text to continue, for models without a template."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in chat.get("tools", ())]
    parts = ["tools:\n" + "\n".join(lines)] if lines else []
    for message in chat["messages"]:
        calls = [
            f'<tool_call>{{"name": {json.dumps(call["function"]["name"])}, "arguments": '
            f"{call['function']['arguments']}}}</tool_call>"
            for call in message.get("tool_calls", ())
        ]
        said = " ".join(filter(None, [message["content"], *calls]))
        parts.append(f"{message['role']}: {said}")
    return "\n\n".join([*parts, "assistant:"])

"""Replies, read from a server's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from eval_gates.reply_forms import clean, read_arguments, read_content
from eval_gates.rows import Reply, ToolCall
from recipes.generation import ThoughtMarkers

MAX_LOGPROB = 0.01  # above 0, by rounding
_WITHHELD = "content_filter"  # a reason to finish, of OpenAI's API


def read_completion(body: Any) -> tuple[Reply, str]:
    """Parse `/v1/completions` to a reply and no thoughts, or raise ValueError."""
    choice = choice_of(body)
    text = choice.get("text")
    if not isinstance(text, str):
        raise ValueError("its answer has no text")
    return _reply(body, choice, text), ""


def read_chat(body: Any) -> tuple[Reply, str]:
    """Parse `/v1/chat/completions` to a reply and its thoughts, or raise ValueError.

    The server's own parser separated these.
    """
    choice = choice_of(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError("its answer has no message")
    content, thoughts, refuses = read_content(message.get("content"))
    # vLLM renamed the key; other servers keep DeepSeek's.
    reasoning = message.get("reasoning") or message.get("reasoning_content") or thoughts
    if not isinstance(reasoning, str):
        raise ValueError("its message is not a text")
    calls, forms = _read_calls(message)
    reply = _reply(body, choice, content, calls, forms)
    is_refused = reply.is_refused or refuses or bool(message.get("refusal"))
    return replace(reply, is_refused=is_refused), reasoning


def _read_calls(message: dict[str, Any]) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
    """Return calls, and the forms of their arguments that are not OpenAI's."""
    listed = message.get("tool_calls") or []
    if not isinstance(listed, list):
        raise ValueError("its tool calls are not a list")
    if not listed and message.get("function_call"):
        listed = [{"function": message["function_call"]}]  # OpenAI's first API of functions
    calls = list[ToolCall]()
    forms = list[str]()
    for call in listed:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("its tool call has no name")
        arguments, form = read_arguments(function.get("arguments"))
        calls.append(ToolCall(function["name"], arguments))
        if form and form not in forms:
            forms.append(form)
    return tuple(calls), tuple(forms)


def _reply(
    body: dict[str, Any],
    choice: dict[str, Any],
    text: str,
    calls: tuple[ToolCall, ...] = (),
    forms: tuple[str, ...] = (),
) -> Reply:
    usage = body.get("usage")
    reason = choice.get("finish_reason")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if type(tokens) is not int or not 0 <= tokens < 2**31:
        raise ValueError("its answer does not count its tokens (usage.completion_tokens)")
    return Reply(
        text,
        tokens,
        is_truncated=reason == "length",
        is_refused=reason == _WITHHELD,
        calls=calls,
        forms=forms,
    )


def read_chosen(body: Any, tokens: Sequence[int]) -> list[tuple[float, bool]]:
    """Return each token's log-probability, and whether it is greedy, else ValueError."""
    try:
        scored = body["choices"][0]["logprobs"]
        logprobs = {str(token): float(value) for token, value in scored["top_logprobs"][0].items()}
        best = float(scored["token_logprobs"][0])
        values = [logprobs[f"token_id:{token}"] for token in tokens]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(
            "its answer lacks the log-probabilities of the tokens asked for"
        ) from error
    return [(value, value >= best) for value in values]


def read_scored(body: Any, prompt: int, begin: int) -> tuple[float, bool]:
    """Return log-probability of a prompt's end, and whether it is greedy, else ValueError."""
    try:
        scored = body["choices"][0]["logprobs"]
        values = scored["token_logprobs"]
        tops = scored["top_logprobs"]
        if not prompt <= len(values) == len(tops) <= prompt + 1:
            raise ValueError(f"{len(values)} log-probabilities of {prompt} tokens")
        logprobs = [float(value) for value in values[begin:prompt]]
        best = [float(max(top.values())) for top in tops[begin:prompt]]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError("its answer lacks the log-probabilities of the prompt's tokens") from error
    return sum(logprobs), all(value >= top for value, top in zip(logprobs, best, strict=True))


def finish(
    reply: Reply,
    reasoning: str,
    stops: Sequence[str],
    thinking: ThoughtMarkers | None,
    *,
    has_begun: bool = False,
    special_tokens: Iterable[str] = (),
) -> Reply:
    """Return the reply that is scored.

    The server has applied `stops` unless the model thinks. `has_begun`: the prompt ends within a
    thought.
    """
    text = reply.text
    is_unclosed = False
    if reasoning:
        is_unclosed = reply.is_truncated and not text and not reply.calls
        if thinking is not None and thinking.keep:
            text = f"{thinking.start}{reasoning}{thinking.end}{text}"
    elif thinking is not None:
        answer, is_unclosed = remove_thoughts(text, thinking, has_begun=has_begun)
        text = text if thinking.keep else answer
    if thinking is not None and not thinking.keep:
        for token in special_tokens:
            text = text.replace(token, "")
        text = cut_at(text.lstrip(), stops)
    text, forms = clean(text, takes_thoughts=thinking is not None)
    is_thought = bool(reasoning) and not reply.text.strip() and not reply.calls
    return replace(
        reply,
        text=text,
        is_unclosed=is_unclosed,
        is_thought=is_thought,
        forms=(*reply.forms, *forms),
    )


def remove_thoughts(
    text: str, markers: ThoughtMarkers, *, has_begun: bool = False
) -> tuple[str, bool]:
    """Return the text without its thoughts, and whether the last one has no end.

    A template may begin the first one.
    """
    closed = text.find(markers.end)
    at = 0
    if has_begun and closed < 0:
        return "", True
    if closed >= 0 and (has_begun or text.find(markers.start, 0, closed) < 0):
        at = closed + len(markers.end)
    kept = []
    while (opened := text.find(markers.start, at)) >= 0:
        kept.append(text[at:opened])
        closed = text.find(markers.end, opened + len(markers.start))
        if closed < 0:
            return "".join(kept), True
        at = closed + len(markers.end)
    return "".join(kept) + text[at:], False


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first stop string."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def choice_of(body: Any) -> dict[str, Any]:
    """Return an answer's first choice, else ValueError."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("its answer has no text")
    return choices[0]

"""Generated answers: read from a server's JSON, without thoughts, cut at their stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from recipes.generation import ThoughtMarkers

_WITHHELD = "content_filter"  # a reason to finish, of OpenAI's API


class ToolCall(NamedTuple):
    """Function that an answer calls, with its arguments as the model wrote them: JSON, or not."""

    name: str
    arguments: str


class GeneratedText(str):
    """Answer without its thoughts, with facts of its generation.

    Attributes:
        tokens: number generated, thoughts included.
        is_truncated: it reached its largest number of tokens.
        is_unclosed: its last thought has no end.
        is_refused: the endpoint withheld it.
        is_thought: the server gave text only in its field of thoughts.
        tool_calls: by the server's parser; only of chat requests.
    """

    tokens: int
    is_refused: bool
    is_thought: bool
    is_truncated: bool
    is_unclosed: bool
    tool_calls: tuple[ToolCall, ...]

    def __new__(
        cls,
        text: str,
        tokens: int = 0,
        *,
        is_truncated: bool = False,
        is_unclosed: bool = False,
        is_refused: bool = False,
        is_thought: bool = False,
        tool_calls: Iterable[ToolCall] = (),
    ) -> GeneratedText:
        made = super().__new__(cls, text)
        made.tokens = tokens
        made.is_truncated = is_truncated
        made.is_unclosed = is_unclosed
        made.is_refused = is_refused
        made.is_thought = is_thought
        made.tool_calls = tuple(tool_calls)
        return made

    @property
    def is_unfinished(self) -> bool:
        return self.is_truncated or self.is_unclosed


class Completion(NamedTuple):
    """One answer as the server gave it."""

    text: str
    tokens: int
    finish_reason: str
    reasoning: str = ""  # thoughts that the server's own parser separated
    tool_calls: tuple[ToolCall, ...] = ()
    is_refused: bool = False


def read_completion(body: Any) -> Completion:
    """Return the answer to a request of `/v1/completions`; ValueError if it lacks a part."""
    choice = _choice(body)
    text = choice.get("text")
    if not isinstance(text, str):
        raise ValueError("its answer has no text")
    reason = str(choice.get("finish_reason"))
    return Completion(text, _tokens(body), reason, is_refused=reason == _WITHHELD)


def read_chat(body: Any) -> Completion:
    """Return the answer to a request of `/v1/chat/completions`; ValueError if it lacks a part."""
    choice = _choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError("its answer has no message")
    # vLLM renamed the key; other servers keep DeepSeek's.
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    content = message.get("content") or ""
    if not isinstance(content, str) or not isinstance(reasoning, str):
        raise ValueError("its message is not a text")
    reason, calls = str(choice.get("finish_reason")), message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError("its tool calls are not a list")
    return Completion(
        content,
        _tokens(body),
        reason,
        reasoning,
        tuple(_tool_call(call) for call in calls),
        is_refused=reason == _WITHHELD or bool(message.get("refusal")),
    )


def finish(
    found: Completion,
    stops: Sequence[str],
    thinking: ThoughtMarkers | None,
    *,
    has_begun: bool = False,
    special_tokens: Iterable[str] = (),
) -> GeneratedText:
    """Return the answer that is scored.

    Args:
        stops: strings that end the answer; the server has applied them unless the model thinks.
        thinking: the markers of its thoughts; None: it does not think.
        has_begun: the prompt ends within a thought.
        special_tokens: removed from the answer.
    """
    is_truncated = found.finish_reason == "length"
    text, is_unclosed = found.text, False
    if found.reasoning:
        is_unclosed = is_truncated and not text and not found.tool_calls
        if thinking is not None and thinking.keep:
            text = f"{thinking.start}{found.reasoning}{thinking.end}{text}"
    elif thinking is not None:
        answer, is_unclosed = remove_thoughts(text, thinking, has_begun=has_begun)
        text = text if thinking.keep else answer
    if thinking is not None and not thinking.keep:
        for token in special_tokens:
            text = text.replace(token, "")
        text = cut_at(text.lstrip(), stops)
    return GeneratedText(
        text,
        found.tokens,
        is_truncated=is_truncated,
        is_unclosed=is_unclosed,
        is_refused=found.is_refused,
        is_thought=bool(found.reasoning) and not found.text.strip() and not found.tool_calls,
        tool_calls=found.tool_calls,
    )


def remove_thoughts(
    text: str, markers: ThoughtMarkers, *, has_begun: bool = False
) -> tuple[str, bool]:
    """Return the text without its thoughts, and whether the last one has no end.

    The start of the first thought may be missing: templates write it into the prompt.
    """
    closed, at = text.find(markers.end), 0
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


def _choice(body: Any) -> dict[str, Any]:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("its answer has no text")
    return choices[0]


def _tokens(body: dict[str, Any]) -> int:
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError("its answer does not count its tokens (usage.completion_tokens)")
    return tokens


def _tool_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("its tool call has no name")
    return ToolCall(function["name"], str(function.get("arguments") or ""))
